"""Checks that the installed torch is the one that the package was built for."""

from __future__ import annotations

from ._version import TORCH, __version__


def check_torch() -> None:
    """Raises ImportError, in one sentence, where the native part could not be loaded or would crash."""
    try:
        import torch
    except ModuleNotFoundError:
        raise ImportError(f"brigade {__version__} needs torch {TORCH}, and there is no torch here: "
                          f"pip install 'torch=={TORCH}.*'") from None
    found = str(torch.__version__)
    if not found.startswith(TORCH + "."):
        raise ImportError(f"brigade {__version__} was built for torch {TORCH}, and this is torch {found}: "
                          f"pip install 'torch=={TORCH}.*', or build brigade again with 'pip install .'")
    if not torch.distributed.is_available():
        raise ImportError(f"brigade {__version__} needs torch.distributed, and this torch {found} was built without it")
