# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes migrations of the control plane's databases out of its tables (development environment).

    python tools/migrations.py first            write 0001 anew, for a version that nobody has installed yet
    python tools/migrations.py NUMBER NAME      write a further one: what the tables have and the migrations do not
"""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
import tempfile
from importlib import import_module

from alembic.autogenerate import produce_migrations, render_python_code
from alembic.migration import MigrationContext
from sqlalchemy import MetaData

import magnetar_control.services
from magnetar_control.store import schema
from magnetar_control.store.database import Database
from magnetar_control.store.tables import API, CELL

FORM = (schema.FOLDER / "script.py.mako").read_text(encoding="utf-8")


def every_table() -> None:
    """Load the modules that register tables of embedded services."""
    for found in pkgutil.walk_packages(magnetar_control.services.__path__, "magnetar_control.services."):
        if found.name.endswith(".tables"):
            import_module(found.name)


def code(metadata: MetaData, fresh: bool) -> str:
    """What brings a database (without tables, or with those of the migrations) to the tables of *metadata*."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/a.db")
        if not fresh:
            schema.upgrade(database, metadata)
        table = schema.version_table(schema.kind_of(metadata))
        with database.read() as connection:
            context = MigrationContext.configure(connection, opts={
                "target_metadata": metadata, "version_table": table})
            made = produce_migrations(context, metadata)
            assert made.upgrade_ops is not None
            found = render_python_code(made.upgrade_ops, migration_context=context)
        database.close()
    return re.sub(r"\n *# ###.*", "", "\n" + found).strip()


def write(metadata: MetaData, number: str, name: str, fresh: bool) -> None:
    """The file of one migration."""
    kind, before = schema.kind_of(metadata), f"{int(number) - 1:04d}"
    text = FORM
    for word, value in (("${message}", f"{name.replace('_', ' ').capitalize()}: tables of the {kind} database."),
                        ("${repr(up_revision)}", f'"{number}"'), ("${upgrades}", code(metadata, fresh)),
                        ("${repr(down_revision)}", "None" if number == "0001" else f'"{before}"')):
        text = text.replace(word, value)
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    path = schema.FOLDER / kind / "versions" / f"{number}_{name}.py"
    path.write_text(text, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", path], check=True)
    print(path.resolve())


def main(words: list[str]) -> int:
    """The command line."""
    every_table()
    fresh = words == ["first"]
    if not fresh and len(words) != 2:
        sys.exit(__doc__)
    number, name = ("0001", "first") if fresh else words
    for metadata in (API, CELL):
        write(metadata, number, name, fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
