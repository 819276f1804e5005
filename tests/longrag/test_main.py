"""The command line answers from any folder, and says what it cannot read."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from longrag.__main__ import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "harbour.md").write_text(
        "# The harbour\n\nThe harbour was built in 1742 by Anna Reyes. See [ships](ships.md).\n"
    )
    (tmp_path / "ships.md").write_text(
        "# Ships\n\nThe largest is the *Morning Star*. It leaves the [harbour](harbour.md).\n"
    )
    (tmp_path / "notes.txt").write_text("The orchard has forty apple trees.\n")
    (tmp_path / "page.html").write_text(
        "<html><title>Pier</title><body><p>The pier is 90 metres long.</p></body></html>"
    )
    return tmp_path


def test_it_answers_with_sources_from_linked_documents(folder, capsys):
    questions = [
        "When was the harbour built?",
        "How long is the pier?",
        "How many apple trees does the orchard have?",
        "Where does the Morning Star leave from?",
    ]
    assert main(["demo", str(folder), *questions, "--embedder", "lsa"]) == 0
    out = capsys.readouterr().out
    parts = [part.splitlines() for part in out.split("# ")[1:]]
    assert [lines[0] for lines in parts] == questions
    assert [lines[2] for lines in parts[:3]] == ["1742", "90 metres", "forty"]
    assert parts[3][2] == "[1] ships.md:3  Ships"
    assert parts[3][3].startswith("The largest is the *Morning Star*. It leaves the")
    assert parts[0][4] == "[1] harbour.md:3  The harbour"
    assert re.fullmatch(r"read \d+ tokens of harbour.md, ships.md, .*", parts[0][7])


def test_a_question_without_an_answer_says_so(folder, capsys):
    assert main(["demo", str(folder), "Who painted the Mona Lisa?", "--embedder", "lsa"]) == 1
    assert "The documents do not answer this question." in capsys.readouterr().out


@pytest.mark.parametrize("extra", [["--k", "0"], ["--token-budget", "0"]])
def test_settings_out_of_range_end_with_a_message(folder, capsys, extra):
    assert main(["demo", str(folder), "Why?", "--embedder", "lsa", *extra]) == 2
    assert "must be" in capsys.readouterr().err


def test_a_missing_or_empty_folder_ends_with_a_message(tmp_path, capsys):
    assert main(["demo", str(tmp_path / "nowhere"), "Why?"]) == 2
    assert "nowhere" in capsys.readouterr().err
    (tmp_path / "blank.md").write_text(" \n")
    assert main(["demo", str(tmp_path), "Why?", "--embedder", "lsa"]) == 2
    assert "with text" in capsys.readouterr().err


def command(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "longrag", "demo", *arguments, "--embedder", "lsa"],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_reader_that_leaves_early_ends_it_quietly(folder):
    # More than a pipe holds, so that some of it is written after the reader has left.
    questions = ["When was the harbour built?"] * 1_000
    with command(str(folder), *questions) as process:
        assert process.stdout.readline() == b"# When was the harbour built?\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_console_without_a_character_shows_a_question_mark(folder):
    (folder / "mill.md").write_text("# Mühle\n\nThe mill was built by Jürgen Groß.\n", "utf-8")
    with command(str(folder), "Who built the mill?", PYTHONIOENCODING="ascii") as process:
        out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert b"mill.md:3  M?hle\n" in out


def test_it_needs_neither_framework(folder):
    code = (
        "import sys\n"
        "sys.modules['llama_index'] = sys.modules['langchain_core'] = None\n"
        "from longrag.__main__ import main\n"
        f"sys.exit(main(['demo', {str(folder)!r}, 'When was the harbour built?']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "\n1742\n" in done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"]])
def test_what_cannot_be_printed_is_told_in_one_line(tmp_path, arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "longrag", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    told = "error: what is printed cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, told)
