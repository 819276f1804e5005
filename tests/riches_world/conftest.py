"""One model for the whole session, trained for real."""

import os
from pathlib import Path

import pytest

from examples.riches_world.train import load_or_train


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The model of seed 0 and its tokenizer; two minutes on one idle core.

    LONGRAG_RICHES names a folder to keep it in from one session to the next.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    kept = os.environ.get("LONGRAG_RICHES")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("riches")
    yield load_or_train(folder / "seed-0", seed=0)
    torch.set_num_threads(threads)
