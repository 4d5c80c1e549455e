"""Teams of real processes that run one case after the other: starting them costs more than most cases do.

A team is a torch.distributed job. A case is a function of a test module: every rank calls it, and the test
gets their results by rank. A case that fails on a rank, or takes too long, ends its team; the next one gets a fresh one.
"""

import multiprocessing
import os
import signal
import traceback
from multiprocessing.connection import Connection, wait

LIMIT = 120  # seconds that a case may take, with its team's start


def two_ranks_on_one_gpu(rank):
    """NCCL takes them for ranks of two hosts that are joined by loopback."""
    os.environ.update(NCCL_HOSTID=f"host{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1",
                      NCCL_IB_DISABLE="1")


def _serve(rank, size, port, limit, backend, connection):
    os.environ["OMP_NUM_THREADS"] = "1"
    if backend == "nccl":
        two_ranks_on_one_gpu(rank)
    import datetime

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    store = dist.TCPStore("127.0.0.1", port, size, is_master=False, wait_for_workers=False)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=limit))
    while True:
        case = connection.recv()
        if case is None:
            break
        function, arguments = case
        try:
            answer = (True, function(*arguments))
        except BaseException:  # the test shows it
            answer = (False, traceback.format_exc())
        connection.send(answer)
    dist.destroy_process_group()


def forkserver():
    """The server imports torch once, computes nothing, and forks, so a worker starts quickly."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "brigade", "pytest"])
    return context


class CaseFailed(AssertionError):
    pass


class Team:
    def __init__(self, size, limit=30, backend="gloo"):
        import torch.distributed as dist

        context = forkserver()
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.connections: list[Connection] = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, self.store.port, limit, backend, theirs), daemon=True)
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)

    def run(self, function, *arguments, limit=LIMIT):
        for connection in self.connections:
            connection.send((function, arguments))
        answers = [None] * len(self.connections)
        open_ = dict(zip(self.connections, range(len(self.connections))))
        while open_:
            ready = wait(list(open_), timeout=limit)
            if not ready:
                self.kill()
                raise CaseFailed(f"ranks {sorted(open_.values())} did not answer within {limit} s")
            for connection in ready:
                rank = open_.pop(connection)
                try:
                    answers[rank] = connection.recv()
                except EOFError:
                    self.processes[rank].join(5)
                    answers[rank] = (False, f"ended with exit code {self.processes[rank].exitcode}")
                    limit = min(limit, 20)
        failed = [f"rank {rank}:\n{text}" for rank, (good, text) in enumerate(answers) if not good]
        if failed:
            self.kill()
            raise CaseFailed("\n".join(failed))
        return [value for _, value in answers]

    def alive(self):
        return all(process.is_alive() for process in self.processes)

    def close(self):
        """Ends in order: every rank destroys its group and exits with 0."""
        for connection in self.connections:
            connection.send(None)
        codes = []
        for process in self.processes:
            process.join(30)
            codes.append(process.exitcode)
        self.kill()
        assert codes == [0] * len(codes), f"exit codes {codes}: a rank did not end in order"

    def kill(self):
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join()


class Teams:
    """One team for each size, started when it is first needed."""

    def __init__(self, backend="gloo"):
        self.backend = backend
        self.teams = {}

    def run(self, size, function, *arguments):
        if size not in self.teams or not self.teams[size].alive():
            self.teams[size] = Team(size, backend=self.backend)
        return self.teams[size].run(function, *arguments)

    def close(self):
        for team in self.teams.values():
            if team.alive():
                team.close()
