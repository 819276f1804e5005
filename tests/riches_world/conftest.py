"""One model for the whole session, trained for real."""

import pytest

from examples.riches_world.train import load_or_train


@pytest.fixture(scope="session")
def trained(riches_folder):
    """The model of seed 0 and its tokenizer."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_or_train(riches_folder / "seed-0", seed=0)
    torch.set_num_threads(threads)
