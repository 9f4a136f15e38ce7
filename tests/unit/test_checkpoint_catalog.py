"""The catalog of checkpoints: whole and verified, or invisible."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trainer.checkpoint.catalog import Catalog, CheckpointRejected
from trainer.checkpoint.files import TEMPORARY, describe_files


def write_part(catalog: Catalog, step: int, part: int, parts: int, generation: int = 0, text: str = "") -> None:
    folder = catalog.begin(step, generation, part)
    for name in ("__0_0.distcp", ".metadata"):
        (folder / name).write_text(f"{name} of step {step} part {part} {text}" * 100)
    files = describe_files(folder, [path.name for path in folder.iterdir()])
    catalog.record_part(step, generation, part, parts, files, {"step": step, "seed": 7})


def make(catalog: Catalog, step: int, parts: int = 2, generation: int = 0) -> Path:
    for part in range(parts):
        write_part(catalog, step, part, parts, generation)
    path = catalog.finalise(step, generation, parts)
    assert path is not None
    catalog.point_to(path)
    return path


def flip(path: Path, offset: int = 50) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "checkpoints")


def test_imports_no_torch() -> None:
    code = "import sys, trainer.checkpoint.catalog; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0


def test_empty_or_absent_folder(catalog: Catalog) -> None:
    assert catalog.newest_verified() is None
    assert catalog.messages == []
    assert catalog.prune(1) == [] and catalog.remove_stale() == []


def test_whole_checkpoint_is_found_with_its_manifest(catalog: Catalog) -> None:
    make(catalog, 5)
    path = make(catalog, 40)
    assert (path.name, (catalog.folder / "latest").read_text()) == ("step-00000040", "step-00000040\n")
    found = Catalog(catalog.folder).newest_verified()
    assert found is not None and found[0] == path
    manifest = found[1]
    assert (manifest["step"], manifest["parts"], manifest["extra"]) == (40, 2, {"step": 40, "seed": 7})
    assert {"part-0/__0_0.distcp", "part-1/.metadata", "part-1.json"} <= set(manifest["files"])


def test_invisible_until_all_parts_are_recorded(catalog: Catalog) -> None:
    write_part(catalog, 5, 0, 2)
    assert catalog.finalise(5, 0, 2) is None
    assert catalog.newest_verified() is None
    write_part(catalog, 5, 1, 2)
    assert catalog.finalise(5, 0, 2) is not None
    assert catalog.newest_verified() is not None


def test_parts_of_other_shapes_do_not_mix(catalog: Catalog) -> None:
    write_part(catalog, 5, 0, 2)
    write_part(catalog, 5, 1, 3)
    with pytest.raises(CheckpointRejected, match="part-1"):
        catalog.finalise(5, 0, 2)


def test_generations_do_not_mix(catalog: Catalog) -> None:
    write_part(catalog, 5, 0, 2, generation=1)
    write_part(catalog, 5, 1, 2, generation=2)
    assert catalog.finalise(5, 1, 2) is None and catalog.finalise(5, 2, 2) is None


DAMAGE = {
    "part-1/__0_0.distcp checksum differs": lambda path: flip(path / "part-1/__0_0.distcp"),
    "part-0/.metadata checksum differs": lambda path: flip(path / "part-0/.metadata"),
    "part-1.json checksum differs": lambda path: flip(path / "part-1.json"),
    "its own checksum differs": lambda path: (path / "manifest.json").write_text(
        (path / "manifest.json").read_text().replace('"seed": 7', '"seed": 8')
    ),
    "its manifest cannot be read": lambda path: os.truncate(path / "manifest.json", 100),
    "it has no manifest": lambda path: (path / "manifest.json").unlink(),
    "part-0/__0_0.distcp has 99 bytes": lambda path: os.truncate(path / "part-0/__0_0.distcp", 99),
    "part-0/__0_0.distcp is missing": lambda path: (path / "part-0/__0_0.distcp").unlink(),
    "part-0/__1_0.distcp is not of this checkpoint": lambda path: (path / "part-0/__1_0.distcp").write_text("x"),
    "its manifest is of step 40": lambda path: path.rename(path.with_name("step-00000050")),
}


@pytest.mark.parametrize("said", DAMAGE)
def test_damage_falls_back_to_the_older_one_and_says_so(catalog: Catalog, said: str) -> None:
    older = make(catalog, 35)
    DAMAGE[said](make(catalog, 40))
    fresh = Catalog(catalog.folder)
    found = fresh.newest_verified()
    assert found is not None and found[0] == older
    (message,) = fresh.messages
    assert said in message and message.startswith("checkpoint step ") and message.endswith(": skipped")


def test_a_mix_of_two_checkpoints_is_rejected(catalog: Catalog) -> None:
    older, newer = make(catalog, 35), make(catalog, 40)
    (newer / "part-1/__0_0.distcp").write_bytes((older / "part-1/__0_0.distcp").read_bytes())
    with pytest.raises(CheckpointRejected, match=r"part-1/__0_0\.distcp checksum differs"):
        catalog.verify(newer)


def test_another_format_is_rejected(catalog: Catalog) -> None:
    from trainer.checkpoint.files import sealed, unsealed

    path = make(catalog, 40)
    body = unsealed((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(sealed(body | {"format": 99}))
    assert catalog.newest_verified() is None
    assert "format 99" in catalog.messages[0]


def test_one_step_saved_again_leaves_the_damaged_one_alone(catalog: Catalog) -> None:
    flip(make(catalog, 40) / "part-0/__0_0.distcp")
    again = make(catalog, 40, generation=1)
    assert again.name == "step-00000040-2"
    found = Catalog(catalog.folder).newest_verified()
    assert found is not None and found[0] == again and found[1]["generation"] == 1


def test_the_pointer_is_not_trusted(catalog: Catalog) -> None:
    path = make(catalog, 40)
    (catalog.folder / "latest").write_text("step-00000099\n")
    found = catalog.newest_verified()
    assert found is not None and found[0] == path


def test_retention(catalog: Catalog) -> None:
    for step in (5, 10, 15):
        make(catalog, step)
    assert catalog.prune(2) == ["step-00000005"]
    assert [path.name for path in catalog.entries()] == ["step-00000015", "step-00000010"]


def test_retention_never_removes_the_newest_verified(catalog: Catalog) -> None:
    good = make(catalog, 5)
    for step in (10, 15):
        flip(make(catalog, step) / "part-0/__0_0.distcp")
    fresh = Catalog(catalog.folder)
    assert fresh.prune(2) == []
    found = fresh.newest_verified()
    assert found is not None and found[0] == good


def test_retention_does_not_count_what_is_not_whole(catalog: Catalog) -> None:
    make(catalog, 5)
    make(catalog, 10)
    (make(catalog, 15) / "part-0/.metadata").unlink()
    assert catalog.prune(2) == []
    make(catalog, 20)
    assert catalog.prune(2) == ["step-00000005"]


def test_stale_folders_go_at_a_start(catalog: Catalog) -> None:
    kept = make(catalog, 5)
    write_part(catalog, 10, 1, 2)
    (catalog.folder / f"{TEMPORARY}latest-1-2").write_text("x")
    (catalog.folder / f"{TEMPORARY}step-00000001-1-2").mkdir()
    ((step, message),) = catalog.remove_stale()
    assert step == 10 and "never completed" in message and "part-1" in message
    assert sorted(path.name for path in catalog.folder.iterdir()) == ["latest", kept.name]


def test_a_running_save_is_not_stale(catalog: Catalog) -> None:
    for step, generation in ((10, 1), (10, 2), (15, 2), (20, 2)):
        write_part(catalog, step, 0, 2, generation)
    assert [step for step, _ in catalog.remove_stale(generation=2, before_step=15)] == [10, 10]
    assert sorted(path.name for path in catalog.folder.iterdir()) == [".writing-00000015-g2", ".writing-00000020-g2"]


def test_one_of_many_finishers_wins(catalog: Catalog) -> None:
    for step in range(20):
        for part in range(3):
            write_part(catalog, step, part, 3)
        winners: list[Path | None] = []
        errors: list[Exception] = []

        def finish(step: int = step, winners: list = winners, errors: list = errors) -> None:
            try:
                winners.append(Catalog(catalog.folder).finalise(step, 0, 3))
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=finish) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert errors == []
        (winner,) = [path for path in winners if path is not None]
        catalog.verify(winner)
    assert not [path for path in catalog.folder.iterdir() if path.name.startswith(".")]


def test_records_are_json_that_people_can_read(catalog: Catalog) -> None:
    path = make(catalog, 5)
    assert json.loads((path / "manifest.json").read_text())["body"]["step"] == 5
