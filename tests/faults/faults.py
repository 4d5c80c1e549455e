"""The vocabulary of the table's rows."""
from dataclasses import dataclass, field

CPP = ("run", "train", "bare")
PYTHON = ("py-run", "py-bare")
LAUNCHED = ("run", "train", "py-run")
ALL = CPP + PYTHON
HOSTS = ("hosts", "py-hosts")


@dataclass(frozen=True)
class TrainsOn:
    """Every process ends with 0, and the parameters are those of a run without a fault."""
    within: float = 30  # seconds from the fault on
    same: bool = True  # must have the hash of a run without a fault

    def __str__(self):
        return "trains on; the undisturbed run's parameters" if self.same else "exit code 0"


@dataclass(frozen=True)
class TrainsWithout:
    """One process is too many: it ends with 1 and this text, the others train on."""
    text: str
    within: float = 30

    def __str__(self):
        return f"trains on; one process ends: exit code 1, says “{self.text}”"


@dataclass(frozen=True)
class Ends:
    """The job fails: with a code and a text for each process that the driver started.

    launcher, rank0, rank1: (code, text): code is a number, a tuple of some, or None for any but 0; text is a regular
    expression that its output must have. None: not checked.
    """
    launcher: tuple = (None, "")
    rank0: tuple = (None, "")
    rank1: tuple = (None, "")
    within: float = 0  # seconds; 0: what the library promises, max(T + 2, 5)
    resumes: bool = True  # the same command once more ends with the parameters of a run without a fault
    keeps: tuple = ()  # patterns of files that may stay in TMPDIR

    def __str__(self):
        looked_at = [one for one in (self.launcher, self.rank0, self.rank1) if one]
        text = next((text for _, text in looked_at if text), "")
        code = next((code for code, _ in looked_at if code is not None), "not 0")
        said = f", says “{text}”" if text else ""
        return f"ends: exit code {code}{said}" + ("; resumes to the same parameters" if self.resumes else "")


def refuses(text, code=2, within=5):
    """An input cannot be used; nothing has been changed by it."""
    return Ends(launcher=(code, text), rank0=(code, text), rank1=(None, ""), within=within, resumes=False)


@dataclass(frozen=True)
class EndsOrTrains:
    """Either is right if it is soon and clean: the fault may hit what is needed, or not."""
    ends: Ends = field(default_factory=Ends)

    @property
    def within(self):
        return max(self.ends.within, TrainsOn.within)

    def __str__(self):
        return f"trains on, or {self.ends}"


@dataclass(frozen=True)
class Fault:
    name: str  # the fault; {} stands for a value of `each`
    do: tuple  # actions, in order
    see: object
    jobs: tuple = ALL
    each: tuple = ()
    needs: tuple = ()  # any of "root", "shim", "nft"
    limit: float = None  # seconds: T, the library's time limit in this job; if not given, as below
    quick: tuple = ()  # the ways to start a job in which `make test` runs it

    def __post_init__(self):
        # A job that must train on needs the time: after a second without a network TCP waits for another, or longer.
        if self.limit is None:
            object.__setattr__(self, "limit", 20 if isinstance(self.see, TrainsOn) else 3)

    def variants(self):
        """The name and value of each variant."""
        return [(self.name.format(value), value) for value in self.each] or [(self.name, None)]
