"""Which floating-point numbers a processor computes with, and which it only emulates."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

_FLAGS: Final = {
    "bfloat16": frozenset({"avx512_bf16", "amx_bf16", "bf16"}),
    "float16": frozenset({"avx512_fp16", "amx_fp16", "asimdhp"}),
}
"""What Linux calls the instructions, on x86 and ARM."""

_FLAG_LINE: Final = re.compile(r"^(?:flags|Features)\s*:(.*)$", re.MULTILINE)


def native_dtype(device: Any = None) -> Any:
    """Return torch.bfloat16 where a device computes with it, and torch.float32 elsewhere.

    Half the size is then up to three times the speed; emulated, it takes several times as long.

    Args:
        device: as torch names it; the processor by default. Of a processor that does not tell its
            instructions (``/proc/cpuinfo``) it is assumed that it has none for bfloat16.
    """
    import torch

    return torch.bfloat16 if is_native(torch.bfloat16, device) else torch.float32


def is_native(dtype: Any, device: Any = None) -> bool:
    """Tell whether a device has instructions for numbers of a dtype of torch; see above."""
    import torch

    kind = torch.device("cpu" if device is None else device).type
    needed = _FLAGS.get(str(dtype).removeprefix("torch."))
    if needed is None or kind not in ("cpu", "cuda"):
        return True
    if kind == "cuda":
        # Each GPU of CUDA computes in float16.
        return dtype is torch.float16 or bool(
            torch.cuda.is_bf16_supported(including_emulation=False)
        )
    return not needed.isdisjoint(_processor_flags())


def _processor_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    try:
        told = _FLAG_LINE.search(path.read_text(errors="replace"))
    except OSError:
        return frozenset()
    return frozenset(told[1].split()) if told else frozenset()
