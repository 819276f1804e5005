import pytest

from longrag.index_file.filling import FillSettings, fill
from longrag.index_file.models import load_embedder
from longrag.index_file.progress import Progress

PAGES = {
    "harbour.md": "---\ntitle: The harbour\ncost: 3\n---\n# The harbour\n\n"
    "The harbour was built in 1742 by Anna Reyes.\nSee [ships](ships.md).\n",
    "ships.md": "# Ships\n\nThe largest is the *Morning Star*. "
    "It leaves the [harbour](harbour.md).\n",
    "notes.txt": "The orchard has forty apple trees.\n\nPears ripen in October.\n",
    "pier.html": "<html><title>Pier</title><body><p>The pier is 90 metres long.</p></body></html>",
}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "pages"
    made.mkdir()
    for name, text in PAGES.items():
        (made / name).write_text(text, "utf-8")
    return made


def settings(embedder="lsa", **others):
    return FillSettings(
        embedder=embedder, load_embedder=lambda: load_embedder(embedder, {}), **others
    )


@pytest.fixture
def index(folder, tmp_path):
    """Fill a file from the folder, and return its path and the report."""

    def fill_again(file="longrag.db", path=folder, **others):
        return tmp_path / file, fill(path, tmp_path / file, settings(**others), Progress())

    return fill_again
