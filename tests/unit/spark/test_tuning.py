"""Which settings a Spark session gets, and which Java it runs on."""

import sys
from pathlib import Path

import pytest

from ister.base.errors import JavaMissingError
from ister.spark import tuning


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_412"', 8),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", 0),
    ],
)
def test_the_version_of_java_is_read_as_every_vendor_writes_it(text: str, version: int) -> None:
    assert tuning.parse_java_version(text) == version


def java(folder: Path, version: str) -> Path:
    """Put a Java of some version into `folder`."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    command.chmod(0o755)
    return folder


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.setattr(tuning, "JAVA_FOLDERS", tmp_path / "jvm")
    return tmp_path


def test_java_home_goes_before_the_path(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(machine / "path", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(java(machine / "home", "17.0.15")))

    assert tuning.find_java() == machine / "home"


def test_a_java_that_is_too_old_is_passed_over(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java(machine / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(java(machine / "home", "11.0.2")))

    assert tuning.find_java() == machine / "path"


def test_the_oldest_of_the_system_that_will_do_is_taken(machine: Path) -> None:
    for version in ("25", "11.0.2", "17.0.15", "21.0.1"):
        java(machine / "jvm" / f"java-{version}", version)

    assert tuning.find_java().name == "java-17.0.15"


def test_without_java_the_error_says_what_to_run(machine: Path) -> None:
    with pytest.raises(JavaMissingError, match="there is none: run `sudo apt-get install"):
        tuning.find_java()


def test_with_an_old_java_only_the_error_names_it(machine: Path) -> None:
    home = java(machine / "path", "1.8.0_412")

    with pytest.raises(JavaMissingError, match=f"{home} is Java 8"):
        tuning.find_java()


@pytest.mark.parametrize(("master", "cores"), [("local", 1), ("local[3]", 3), ("local[2,3]", 2)])
def test_shuffles_have_a_partition_for_each_task_at_a_time(master: str, cores: int) -> None:
    assert tuning.cores_of(master) == cores
    settings = tuning.tuned_settings(master, cores=cores, memory_mib=16_000)
    assert settings["spark.sql.shuffle.partitions"] == str(cores)


def test_all_cores_are_those_this_process_may_use() -> None:
    assert tuning.cores_of("local[*]") >= 1
    assert tuning.cores_of("spark://host:7077") >= 1


@pytest.mark.parametrize(
    ("memory_mib", "heap"), [(2_000, "1024m"), (16_000, "4000m"), (256_000, "8192m")]
)
def test_the_heap_is_a_quarter_of_the_memory_within_bounds(memory_mib: int, heap: str) -> None:
    settings = tuning.tuned_settings("local[2]", cores=2, memory_mib=memory_mib)

    assert settings["spark.driver.memory"] == heap


@pytest.mark.parametrize(
    ("limit", "expected"), [("2147483648\n", 2_048), ("max\n", None), (None, None)]
)
def test_a_container_has_no_more_memory_than_it_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, expected: int | None
) -> None:
    monkeypatch.setattr(tuning, "MEMORY_LIMITS", ())
    machine_mib = tuning.memory_mib()
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit)
    monkeypatch.setattr(tuning, "MEMORY_LIMITS", (tmp_path / "none", file))

    assert tuning.memory_mib() == min(machine_mib, expected or machine_mib)


def test_a_cluster_keeps_its_own_memory_and_addresses() -> None:
    settings = tuning.tuned_settings("spark://host:7077", cores=2, memory_mib=16_000)

    assert "spark.driver.memory" not in settings
    assert "spark.driver.host" not in settings


@pytest.mark.parametrize(
    ("checkpoint", "master", "local"),
    [
        (None, "local[2]", True),
        (None, "spark://host:7077", False),
        ("/var/checkpoints", "spark://host:7077", True),
        ("file:///var/checkpoints", "local[2]", True),
        ("s3a://bucket/checkpoints", "local[2]", False),
        ("hdfs://name/checkpoints", "spark://host:7077", False),
    ],
)
def test_only_checkpoints_on_a_plain_disk_use_its_rename(
    checkpoint: str | None, master: str, local: bool
) -> None:
    settings = tuning.tuned_settings(master, cores=2, memory_mib=8_000, checkpoint=checkpoint)

    assert ("spark.sql.streaming.checkpointFileManagerClass" in settings) is local


def test_the_log_settings_that_spark_is_pointed_to_are_there() -> None:
    settings = tuning.tuned_settings("local[2]", cores=2, memory_mib=8_000)

    option = settings["spark.driver.extraJavaOptions"]
    path = Path(option.removeprefix("-Dlog4j2.configurationFile=file:"))
    assert "rootLogger.level = error" in path.read_text()


def test_workers_have_this_python_where_the_quicker_way_cannot_be_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PYSPARK_ISTER_PYTHON", raising=False)
    assert tuning.worker_python() == str(tuning.WORKER_PYTHON)

    monkeypatch.setattr(tuning, "WORKER_PYTHON", tmp_path / "none")

    assert tuning.worker_python() == sys.executable
