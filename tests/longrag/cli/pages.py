"""Three small pages, two of which link to each other."""

from pathlib import Path


def write_pages(folder: Path) -> Path:
    """Write the pages into a new folder, and return it."""
    folder.mkdir()
    (folder / "harbour.md").write_text(
        "# The harbour\n\nThe harbour was built in 1742 by Anna Reyes. See [ships](ships.md).\n"
    )
    (folder / "ships.md").write_text(
        "# Ships\n\nThe largest is the *Morning Star*. It leaves the [harbour](harbour.md).\n"
    )
    (folder / "notes.txt").write_text("The orchard has forty apple trees.\n")
    return folder
