# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of cells, as a process that runs keeps it."""

from magnetar_control.store.store import Store


def test_another_database_of_a_cell_counts_from_the_next_start_and_is_told_once(sqlite, tmp_path, caplog):
    store = Store(sqlite)
    cell = store.add_cell("cell1", f"sqlite:///{tmp_path}/one.db")
    opened = store.cell(cell.id)
    try:
        store.add_cell("cell1", f"sqlite:///{tmp_path}/two.db")
        for _look in range(2):
            store.cells(fresh=True)
        assert store.cell(cell.id) is opened
        said = [one.getMessage() for one in caplog.records if "another database" in one.getMessage()]
        assert len(said) == 1 and said[0].startswith("cell cell1 has") and "restart every API process" in said[0]
        store.add_cell("cell1", f"sqlite:///{tmp_path}/one.db")
        assert len([one for one in caplog.records if "another database" in one.getMessage()]) == 1
    finally:
        opened.close()
