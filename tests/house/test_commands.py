"""What a contributor runs by hand, before a commit and in CI is one list of commands."""

import re

import yaml

from tests.changed import ROOT


def recipe(target):
    """Return the commands of a target of the Makefile."""
    lines = (ROOT / "Makefile").read_text("utf-8")
    return re.findall(r"^\t(.+)$", re.split(rf"^{target}:.*\n", lines, flags=re.M)[1]
                      .partition("\n\n")[0] + "\n", re.M)  # fmt: skip


def test_the_hooks_of_a_commit_are_the_linters_of_make_lint():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0]
    entries = [hook["entry"].replace(" --force-exclude", "") for hook in hooks["hooks"]]
    linters = [command.replace("$(BIN)", ".venv/bin") for command in recipe("lint")]
    assert sorted(entries) == sorted(linters)


def test_ci_runs_the_targets_that_are_described():
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    targets = re.findall(r"^make (\S+)", script, re.M)
    assert {"lint", "test", "demo", "floor"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text("utf-8"), re.M)
