"""`kohort broker repair`, on the directory of a broker that was stopped (issue 14, item 5)."""

from __future__ import annotations

from pathlib import Path

from kohort import Consumer, Producer
from kohort.testing import Cluster
from tests.cli.conftest import Run

GARBAGE = b"\x02" * 300
SETTINGS = {"durability": "os", "log_segment_bytes": 2_000}


def fill(directory: Path) -> list[Path]:
    """Some segments of a topic; the broker has ended in order."""
    with (
        Cluster(data_dir=directory, **SETTINGS) as cluster,
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
    ):
        cluster.create_topic("t", partitions=1)
        for n in range(40):
            producer.send("t", b"%d" % n + b"x" * 200).result(9)
    return sorted((directory / "t-0").glob("*.log"))


def read(directory: Path, upto: int) -> list[int]:
    """Which records come, and one more is taken behind them."""
    with Cluster(data_dir=directory, **SETTINGS) as cluster:
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            assert producer.send("t", b"40").result(9).offset == 40
        with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
            consumer.assign([("t", 0)])
            consumer.seek_to_beginning(("t", 0))
            found: list[int] = []
            while not found or found[-1] != upto:
                found += [int((r.value or b"").rstrip(b"x")) for r in consumer.poll(9)]
            return found


def test_garbage_behind_a_sealed_segment(bare: Run, tmp_path: Path) -> None:
    first, second, *_ = fill(tmp_path)
    size = first.stat().st_size
    with first.open("ab") as file:
        file.write(GARBAGE)
    ran = bare("broker", "repair", str(tmp_path), "-o", "json")
    assert ran.code == 3
    assert ran.json["rows"] == [
        {
            "file": f"t-0/{first.name}",
            "problem": "damaged bytes",
            "position": size,
            "bytes": len(GARBAGE),
            "lost_offsets": "none",
        }
    ]
    assert first.stat().st_size == size + len(GARBAGE), "nothing is changed without --execute"
    assert bare("broker", "repair", str(tmp_path), "--execute").code == 0
    assert first.with_name(f"{first.name}.{size}.damaged").read_bytes() == GARBAGE
    assert bare("broker", "repair", str(tmp_path)).err == "no damage in 1 partitions\n"
    assert read(tmp_path, 40) == list(range(41))
    assert int(second.stem) > 0


def test_a_damaged_batch_and_a_missing_file(bare: Run, tmp_path: Path) -> None:
    """Sound records before and behind stay at their offsets; the rest is passed."""
    first, second, third, *_ = fill(tmp_path)
    data = bytearray(first.read_bytes())
    batch = int.from_bytes(data[8:12], "big") + 12
    data[batch + 100] ^= 1  # in the records of the second batch
    first.write_bytes(data)
    second.unlink()
    ran = bare("broker", "repair", str(tmp_path))
    assert ran.code == 3
    lost = set(range(int(second.stem), int(third.stem)))
    assert "lost_offsets".replace("_", "-").upper() in ran.lines[0]
    assert [line.split("  ")[-1] for line in ran.lines[1:]] == ["1 to 1"]
    assert bare("broker", "repair", str(tmp_path), "--execute").code == 0
    assert read(tmp_path, 40) == [n for n in range(41) if n != 1 and n not in lost]


def test_a_directory_in_use_is_left_alone(bare: Run, tmp_path: Path) -> None:
    with Cluster(data_dir=tmp_path, **SETTINGS):
        ran = bare("broker", "repair", str(tmp_path))
    assert ran.code == 1
    assert "in use by process" in ran.err
