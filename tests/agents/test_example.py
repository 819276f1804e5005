"""The example in which agents ask the server, in the environment of either adapter."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from tests.agents.conftest import ROOT, SERVER

NAMES = {"llama_index.tools": "LlamaIndex", "langchain_mcp_adapters": "LangChain"}


def installed(module):
    package, _, rest = module.partition(".")
    if importlib.util.find_spec(package) is None:
        return False
    return importlib.util.find_spec(f"{module}.mcp" if rest else module) is not None


@pytest.mark.enable_socket
def test_agents_search_over_mcp_within_their_budget():
    found = {name for module, name in NAMES.items() if installed(module)}
    if not found:
        pytest.skip("no framework's adapter is installed")
    example = ROOT / "examples" / "29_agents_over_mcp.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LONGRAG_SERVER": SERVER}
    done = subprocess.run(
        [sys.executable, str(example)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = dict(re.findall(r"^(LlamaIndex|LangChain): (\d+) tokens", done.stdout, re.MULTILINE))
    assert told.keys() == found
    assert all(0 < int(tokens) <= 250 for tokens in told.values())
