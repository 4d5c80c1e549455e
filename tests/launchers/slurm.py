"""A SLURM on one machine, for tests: munge, a controller and a daemon for each of two nodes, with separate files."""
import os
import pathlib
import shutil
import subprocess
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")
# Debian's slurmctld and slurmd are in /usr/sbin. Nodes have four CPUs, whatever the machine has. The daemons wait for each other longer than the
# usual 2 and 10 seconds: on a machine that is busy with other work a daemon may not get the processor for as long.
CONFIGURATION = """
ClusterName=brigade
SlurmctldHost=head(10.99.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
ReturnToService=2
TCPTimeout=60
MessageTimeout=100
BatchStartTimeout=100
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldPort=16817
NodeName=node0 NodeHostname=head NodeAddr=10.99.0.1 Port=16820 CPUs=4 RealMemory=100
NodeName=node1 NodeHostname=head NodeAddr=10.99.0.2 Port=16821 CPUs=4 RealMemory=100
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=5
"""


def missing():
    """The programs that are not installed."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    return [name for name in PROGRAMS if not shutil.which(name, path=path)]


class Slurm:
    """Runs while the `with` block does. REQUIRES: root, and a host named head with the addresses below, whose ports 16817 to 16821 are free."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.daemons = []
        self.environment = {
            **os.environ,
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }

    def __enter__(self):
        try:
            self.write_files()
            self.start_munge()
            self.start("slurmctld", "-D", "-f", self.folder / "slurm.conf")
            for node in ("node0", "node1"):
                self.start("slurmd", "-D", "-N", node, "-f", self.folder / "slurm.conf")
            self.wait_until(lambda: self.ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle", "idle"], "both nodes are idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def write_files(self):
        self.folder.chmod(0o755)  # munge takes no socket in a folder that others cannot enter
        (self.folder / "munge").mkdir(mode=0o755)
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(folder=self.folder))
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)

    def start_munge(self):
        munge = self.folder / "munge"
        self.start("munged", "-F", "--key-file", munge / "key", "--socket", munge / "socket", "--pid-file", munge / "pid",
                   "--seed-file", munge / "seed", "--log-file", munge / "log")
        self.wait_until((munge / "socket").exists, "munge answers")

    def start(self, *command):
        with open(self.folder / f"{command[0]}.{len(self.daemons)}.log", "wb") as log:
            words = [str(word) for word in command]
            self.daemons.append(
                subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment))

    def ask(self, *command):
        return subprocess.run(command, capture_output=True, text=True, timeout=30, env=self.environment).stdout

    def wait_until(self, condition, what, limit=60):
        end = time.monotonic() + limit
        while not condition():
            ended = [daemon.args[0] for daemon in self.daemons if daemon.poll() is not None]
            if ended or time.monotonic() > end:
                raise AssertionError(f"not so within {limit} s: {what}; ended: {ended}\n{self.logs()}")
            time.sleep(0.1)

    def logs(self):
        """The last lines of every daemon's log."""
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}" for log in sorted(self.folder.glob("*.log")))
