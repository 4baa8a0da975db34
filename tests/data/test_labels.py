"""The table of labels."""

from sparsona.data import DataConfig, build
from sparsona.data.labels import label_table


def test_the_table_counts_what_the_fleet_holds() -> None:
    fleet = build(DataConfig(clients=5), 0)
    rows = label_table(fleet)
    assert [row.client for row in rows] == ["0", "1", "2", "3", "4"]
    assert sum(row.train + row.validation + row.test for row in rows) == 1797
    counts = fleet.label_counts()[0]
    top = int(counts.argmax())
    assert rows[0].labels.startswith(f"{top}: {counts[top]}, ")
    assert "more" not in label_table(fleet, top=10)[0].labels
