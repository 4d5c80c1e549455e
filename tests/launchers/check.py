#!/usr/bin/env python3
"""Runs the example and the command under real launchers: Open MPI's mpirun, and a SLURM with two nodes on this machine; and with the variables
of Kubernetes' training operator, with processes as pods.

check.py BIN: BIN is the build's bin folder. Runs the lines that docs/launching.md shows. `make check` runs it, since it needs their Debian
packages (scripts/setup --check installs them). Everything happens in separate namespaces, with their own ports, host name and /etc/hosts: root only.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import slurm

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/launching.md").read_text()
BIN = pathlib.Path(sys.argv[1]).resolve()
EXAMPLE = BIN / "examples/ddp"
LIMIT = 120
HOSTS = "127.0.0.1 localhost\n10.99.0.1 head node0\n10.99.0.2 node1\n"
# Adds an interface besides loopback: without one getaddrinfo with AI_ADDRCONFIG, which SLURM uses, finds no address.
NAMESPACE = """
set -e
mount --make-rprivate /
mount --bind "$0" /etc/hosts
echo head >/proc/sys/kernel/hostname
ip link set lo up
ip link add net0 type veth peer name net1
ip address add 10.99.0.1/24 dev net0
ip address add 10.99.0.2/24 dev net0
ip link set net1 up
ip link set net0 up
exec "$@"
"""
FOREIGN = re.compile(r"SLURM|OMPI|PMI|RANK|WORLD_SIZE|MASTER_|TORCHELASTIC|PET_|LD_LIBRARY_PATH")


def enter_namespaces():
    """Starts this program again where its actions cannot be seen outside."""
    if os.environ.get("BRIGADE_APART"):
        return
    if os.geteuid() != 0:
        print("skipped: needs root, for a network namespace and for SLURM's daemons")
        sys.exit(0)
    os.environ["BRIGADE_APART"] = "1"
    with tempfile.NamedTemporaryFile("w", suffix=".hosts") as hosts:
        hosts.write(HOSTS)
        hosts.flush()
        os.chmod(hosts.name, 0o644)
        command = ["unshare", "-m", "-n", "-u", "bash", "-c", NAMESPACE, hosts.name, sys.executable, *sys.argv]
        sys.exit(subprocess.run(command, env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}).returncode)


def shown(section, language=""):
    """The code blocks of a section of docs/launching.md."""
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def clean_environment():
    kept = {name: value for name, value in os.environ.items() if not FOREIGN.search(name)}
    return {**kept, "OMP_NUM_THREADS": "1", "BRIGADE_TIMEOUT": "60"}


def run(command, environment):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT, cwd="/", env=environment,
                          stdin=subprocess.DEVNULL)
    if done.returncode:
        raise AssertionError(f"{command} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Launched(unittest.TestCase):
    def learned(self, output, processes):
        """Checks that every process has trained, with the same result."""
        losses = re.findall(r"epoch 5: loss ([\d.]+)", output)
        self.assertEqual(len(losses), processes, output)
        self.assertEqual(len(set(losses)), 1, f"replicas differ:\n{output}")
        self.assertLess(float(losses[0]), 0.5, output)


@unittest.skipUnless(shutil.which("mpirun"), "openmpi-bin is not installed")
class OpenMpi(Launched):
    # mpirun refuses root, and more processes than cores, unless told.
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
               "OMPI_MCA_hwloc_base_binding_policy": "none"}

    def mpirun(self, *words):
        return run(["mpirun", *words], {**clean_environment(), **self.allowed})

    def test_four_ranks_of_one_host_meet_without_an_address(self):
        self.learned(self.mpirun("-np", 4, EXAMPLE), 4)

    def test_the_line_of_the_docs_runs(self):
        line, = [line for line in shown("MPI")[0].splitlines() if line.startswith("mpirun")]
        words = line.replace("-np 16", "-np 4").replace("10.0.0.1", "127.0.0.1").replace("./train", str(EXAMPLE)).split()
        self.learned(self.mpirun(*words[1:]), 4)

    def test_two_jobs_at_once_do_not_meet(self):
        environment = {**clean_environment(), **self.allowed}
        jobs = [subprocess.Popen(["mpirun", "-np", "2", str(EXAMPLE)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 stdin=subprocess.DEVNULL, cwd="/", env=environment) for _ in range(2)]
        try:
            for output in [job.communicate(timeout=LIMIT)[0] for job in jobs]:
                self.learned(output, 2)
        finally:
            for job in jobs:
                job.kill()
                job.wait()

    def test_a_rank_that_fails_ends_the_job(self):
        words = ["-np", "2", "bash", "-c", f"[ $OMPI_COMM_WORLD_RANK = 0 ] || exit 7; exec {EXAMPLE}"]
        with self.assertRaisesRegex(AssertionError, "exited with 7"):
            self.mpirun(*words)


@unittest.skipIf(slurm.missing(), f"not installed: {slurm.missing()}")
class Slurm(Launched):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="brigade_slurm_"))
        cls.slurm = cls.enterClassContext(slurm.Slurm(folder))
        cls.folder = pathlib.Path(folder)
        cls.environment = {**clean_environment(), **{key: cls.slurm.environment[key] for key in ("PATH", "SLURM_CONF")}}

    def test_srun_on_one_node(self):
        self.learned(run(["srun", "-N", 1, "-n", 4, EXAMPLE], self.environment), 4)

    def test_srun_on_two_nodes_finds_the_first_by_itself(self):
        self.learned(run(["srun", "-N", 2, "-n", 4, EXAMPLE], self.environment), 4)

    def test_nodes_may_have_different_numbers_of_tasks(self):
        self.learned(run(["srun", "-N", 2, "-n", 3, "--distribution=block", EXAMPLE], self.environment), 3)

    def batch(self, script, name):
        """Returns the output of a batch script of the docs, with two workers a node."""
        script = script.replace("--ntasks-per-node=8", "--ntasks-per-node=2").replace("brigade run -n 8", f"{BIN}/brigade run -n 2")
        path, output = self.folder / f"{name}.sh", self.folder / f"{name}.out"
        path.write_text(script.replace("./train", str(EXAMPLE)))
        try:
            run(["sbatch", "--wait", "-o", output, path], self.environment)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{output.read_text() if output.exists() else ''}\n{self.slurm.logs()}") from None
        return output.read_text()

    def test_the_batch_script_of_the_docs_with_a_task_a_worker(self):
        self.learned(self.batch(shown("SLURM")[0], "tasks"), 4)

    def test_the_batch_script_of_the_docs_with_a_launcher_a_host(self):
        output = self.batch(shown("SLURM")[1], "launchers")
        self.learned(output, 4)
        self.assertEqual(sorted(re.findall(r"\[(\d)\] epoch 5", output)), ["0", "1", "2", "3"], output)

    def test_a_worker_that_fails_under_launchers_is_named_and_ends_the_job(self):
        command = f"{BIN}/brigade run -n 2 --nnodes 2 --node-rank $SLURM_NODEID --master-addr node0 bash -c '[ $RANK != 3 ] || exit 7; exec {EXAMPLE}'"
        with self.assertRaisesRegex(AssertionError, r"rank 3 failed: exit code 7"):
            run(["srun", "-N", 2, "--ntasks-per-node=1", "bash", "-c", command], self.environment)


class Kubernetes(Launched):
    """There is no cluster here, so the test does what the operator would do."""

    def pods(self, pods, workers, command):
        """Returns the output of all pods. The operator's variables: pkg/controller.v1/pytorch/envvar.go of kubeflow/training-operator."""
        started = []
        try:
            for pod in range(pods):
                variables = {"MASTER_ADDR": "node0", "MASTER_PORT": "23456", "PYTHONUNBUFFERED": "0", "RANK": pod,
                             "WORLD_SIZE": pods * (workers or 1)}
                if workers:  # the operator does so since it has nprocPerNode
                    variables |= {"PET_MASTER_ADDR": "node0", "PET_MASTER_PORT": "23456", "PET_NODE_RANK": pod, "PET_NNODES": pods,
                                  "PET_NPROC_PER_NODE": workers}
                environment = clean_environment() | {name: str(value) for name, value in variables.items()}
                started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/",
                                                stdin=subprocess.DEVNULL, env=environment))
            outputs = [pod.communicate(timeout=LIMIT)[0] for pod in started]
        finally:
            for pod in started:
                pod.kill()
                pod.wait()
        self.assertEqual([pod.returncode for pod in started], [0] * pods, "\n".join(outputs))
        return "".join(outputs)

    def test_the_manifest_of_the_docs_with_the_variables_of_nprocPerNode(self):
        manifest = shown("Kubernetes", "yaml")[0]
        workers = int(re.search(r'nprocPerNode: "(\d+)"', manifest)[1])
        pods = sum(int(number) for number in re.findall(r"replicas: (\d+)", manifest))
        commands = {tuple(json.loads(words)) for words in re.findall(r"command: (\[.*?\])", manifest)}
        self.assertEqual(commands, {("brigade", "run", "/app/train")})
        self.assertEqual((pods, workers), (4, 2))
        self.learned(self.pods(2, workers, [BIN / "brigade", "run", EXAMPLE]), 2 * workers)

    def test_the_line_of_the_docs_with_the_variables_of_older_operators(self):
        line = json.loads(re.search(r"^args: (.*)$", shown("Kubernetes", "yaml")[1], re.MULTILINE)[1])[0]
        line = line.replace("-n 8", "-n 2").replace("brigade run", f"{BIN}/brigade run").replace("./train", str(EXAMPLE))
        self.learned(self.pods(2, None, ["bash", "-c", line]), 4)

    def test_a_worker_a_pod_needs_no_launcher(self):
        self.learned(self.pods(3, None, [EXAMPLE]), 3)


if __name__ == "__main__":
    enter_namespaces()
    unittest.main(argv=sys.argv[:1], verbosity=2)
