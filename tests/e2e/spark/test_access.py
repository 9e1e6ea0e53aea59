"""Spark and a broker that speaks TLS and asks for tokens: reads, writes, pipelines, refusals.

No token is ever shown: not in errors, nor in what Spark tells of a query, nor in what it keeps.
"""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.e2e.conftest import BrokerProcess
from tests.e2e.shell import Shell
from tests.e2e.spark.guarded import TOKEN, WRONG, Guarded, kept_in, running_guarded
from tests.e2e.spark.queries import payloads
from tests.e2e.spark.reads import publish

import ister
import ister.sync
from ister.errors import UnauthenticatedError
from ister.spark.pipelines import RunOptions, read_pipeline
from ister.spark.pipelines.runtime.progress import LinesView
from ister.spark.pipelines.runtime.runner import Runner

pytestmark = pytest.mark.e2e

QUERY_S = 120


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker with TLS that asks for a token."""
    with running_guarded(tmp_path_factory.mktemp("guarded")) as one:
        yield one


@pytest.fixture
def client(guarded: Guarded) -> Iterator[ister.sync.Client]:
    """A client of `guarded`."""
    with guarded.connect() as one:
        yield one


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("cast(id AS string) AS value")


def write(frame: DataFrame, **options: str) -> None:
    frame.write.format("ister").mode("append").options(**options).save()


def read(spark: SparkSession, **options: str) -> list[int]:
    frame = spark.read.format("ister").options(**options).load()
    return sorted(int(bytes(row[0])) for row in frame.select("payload").collect())


@pytest.mark.parametrize("way", ["token", "tokenFile"])
def test_a_batch_is_written_and_read_with_tls_and_a_token(
    spark: SparkSession, guarded: Guarded, topic: str, way: str
) -> None:
    options = guarded.options | {"topic": topic}
    if way == "tokenFile":
        del options["token"]
        options["tokenFile"] = str(guarded.token_file)

    write(numbers(spark, 100), **options)

    assert read(spark, **options) == list(range(100))


def test_a_client_certificate_opens_a_broker_that_asks_for_one(
    spark: SparkSession, guarded: Guarded, topic: str, tmp_path: Path
) -> None:
    files = guarded.certificates
    args = ("--tls-cert", files.cert, "--tls-key", files.key, "--tls-client-ca", files.ca)
    mutual = BrokerProcess(tmp_path, [*map(str, args), "--no-grpc"])
    mutual.start()
    trusting = {"url": mutual.url, "topic": topic, "tlsCa": str(files.ca)}
    own = {"tlsCert": str(files.client_cert), "tlsKey": str(files.client_key)}
    try:
        write(numbers(spark, 10), **trusting, **own)
        rows = read(spark, **trusting, **own)
        with pytest.raises(PySparkException) as caught:
            read(spark, **trusting)
    finally:
        mutual.kill()

    assert rows == list(range(10))
    assert "options `tlsCert` and `tlsKey`" in str(caught.value)


def test_a_stream_from_topic_to_topic_writes_each_row_once_and_shows_its_token_nowhere(
    spark: SparkSession, guarded: Guarded, client: ister.sync.Client, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, kind="stream", partitions=2)
    checkpoint = tmp_path / "checkpoint"
    source = {"topic": topic, "startingOffsets": "earliest", "subscription": "progress"}

    def run() -> str:
        """Go on behind the checkpoint; return all that Spark has to say of it."""
        frame = spark.readStream.format("ister").options(**guarded.options, **source).load()
        query = (
            frame.select("payload")
            .writeStream.format("ister")
            .options(**guarded.options, topic=f"{topic}-out")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(QUERY_S), "the query did not end by itself"
        return explained(frame) + explained(query) + "".join(p.json for p in query.recentProgress)

    publish(client, topic, [b"%d" % n for n in range(100)])
    run()
    publish(client, topic, [b"%d" % n for n in range(100, 200)])
    run()
    # As after a driver that died between publishing a batch and noting it: it comes again.
    for mark in (checkpoint / "commits").glob("*1*"):
        mark.unlink()
    said = run()

    assert sorted(map(int, payloads(client, f"{topic}-out"))) == list(range(200))
    kept = kept_in(checkpoint)
    assert '"batchId": 1,' in said
    assert '"numInputRows": 100,' in said
    assert topic in kept
    for shown in (said, kept, guarded.broker.log_text()):
        assert TOKEN not in shown


def explained(plan: object) -> str:
    """Return what `explain` prints of a frame or a query."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        plan.explain(extended=True)  # type: ignore[attr-defined]
    assert "== Physical Plan ==" in out.getvalue()
    return out.getvalue()


REFUSALS: dict[str, tuple[dict[str, str | None], str]] = {
    "a token that nobody has": (
        {"token": WRONG},
        "unknown token; give one that the broker knows with option `token` or `tokenFile`",
    ),
    "no token": ({"token": None}, "no token was given: this broker asks for one; give one"),
    "a token of two words": ({"token": f"{WRONG} {WRONG}"}, "a token is printable ASCII without"),
    "a token file that is not there": (
        {"token": None, "tokenFile": "/nowhere/token"},
        "token file /nowhere/token: No such file",
    ),
    "no authority": ({"tlsCa": None}, "name the authority that signed it with option `tlsCa`"),
    "an authority that is not there": ({"tlsCa": "/nowhere/ca"}, "/nowhere/ca: No such file"),
    "TLS left out": ({"tlsCa": None, "url": "ister://"}, "if TLS is on there, write isters://"),
    "a token in the open": (
        {"tlsCa": None, "url": "ister://192.0.2.1:6655"},
        "is without TLS, so anybody on the way could read the token",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_says_which_option_is_wrong_and_shows_no_token(
    spark: SparkSession, guarded: Guarded, topic: str, name: str
) -> None:
    changes, text = REFUSALS[name]
    options = {
        key: value for key, value in (guarded.options | changes | {"topic": topic}).items() if value
    }
    if options["url"] == "ister://":
        options["url"] = guarded.url.replace("isters://", "ister://")

    with pytest.raises(PySparkException) as of_read:
        read(spark, **options)
    with pytest.raises(PySparkException) as of_write:
        write(numbers(spark, 1), **options)

    for caught in (of_read, of_write):
        assert text in str(caught.value)
        assert TOKEN not in str(caught.value)
        assert WRONG not in str(caught.value)


def test_spark_hides_the_token_in_the_plan_of_a_view_that_has_it_in_its_options(
    spark: SparkSession, guarded: Guarded, topic: str
) -> None:
    options = guarded.options | {"topic": topic, "tokenFile": "/run/secrets/spark"}
    listed = ", ".join(f"{name} '{value}'" for name, value in options.items())
    statement = f"CREATE TEMPORARY VIEW guarded USING ister OPTIONS ({listed})"

    shown = str(spark.sql(f"EXPLAIN EXTENDED {statement}").collect())

    assert f"topic -> {topic}" in shown
    assert "token -> *********(redacted)" in shown
    assert TOKEN not in shown


def test_sealed_segments_are_read_past_a_broker_that_asks_who_comes(
    spark: SparkSession, guarded: Guarded, client: ister.sync.Client, topic: str
) -> None:
    client.create_topic(topic, kind="stream")
    # A file ends between two writes, and one write takes all that has come.
    for start in range(0, 3_000, 250):
        publish(client, topic, [b"%01000d" % (start + n) for n in range(250)])
    options = guarded.options | {"topic": topic}

    before = client.topics(topic)[0].messages_out
    assert read(spark, **options) == list(range(3_000))
    past = client.topics(topic)[0].messages_out - before
    assert read(spark, **options, segments="off") == list(range(3_000))
    through = client.topics(topic)[0].messages_out - before - past

    # What is not sealed yet, one file of 1 MiB at most, comes from the broker.
    assert past < 1_100
    assert through == 3_000


def run_pipeline(spark: SparkSession, file: Path) -> tuple[int, str]:
    """Run a pipeline over what is there; return its exit code and what it said, also to its log."""
    out, log = io.StringIO(), file.with_suffix(".log")
    definition = read_pipeline(str(file), environment=os.environ).get()
    definition = definition.overridden(available_now=True)
    runner = Runner(spark, definition, RunOptions(restart=False), view=LinesView(out), log=log)
    code = runner.run()
    return code, out.getvalue() + (log.read_text() if log.exists() else "")


@pytest.mark.parametrize("given", ["in the file", "in variables"])
def test_a_pipeline_comes_in_with_what_its_file_refers_to_or_the_variables_of_commands_have(
    spark: SparkSession,
    guarded: Guarded,
    client: ister.sync.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
) -> None:
    client.create_topic(topic, kind="stream")
    publish(client, topic, [b'{"id": 1}', b"no object", b'{"id": 2}'])
    keys = {}
    if given == "in the file":
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        (tmp_path / "ca.pem").write_bytes(guarded.certificates.ca.read_bytes())
        keys = {"token": "${file:token}", "tls_ca": "ca.pem"}
    else:
        monkeypatch.setenv("ISTER_TOKEN", TOKEN)
        monkeypatch.setenv("ISTER_TLS_CA", str(guarded.certificates.ca))

    code, said = run_pipeline(spark, guarded.write_pipeline(tmp_path, topic, **keys))

    assert code == 0, said
    assert sorted(payloads(client, f"{topic}-out")) == [b'{"id":2}', b'{"id":4}']
    assert payloads(client, f"{topic}-dead") == [b"no object"]
    assert TOKEN not in said + kept_in(tmp_path / ".ister")


def test_a_pipeline_with_a_wrong_token_ends_and_names_the_key(
    spark: SparkSession,
    guarded: Guarded,
    client: ister.sync.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.create_topic(topic, kind="stream")
    monkeypatch.setenv("OF_TESTS", WRONG)
    ca = str(guarded.certificates.ca)

    file = guarded.write_pipeline(tmp_path, topic, token="${env:OF_TESTS}", tls_ca=ca)
    code, said = run_pipeline(spark, file)

    assert code == UnauthenticatedError.exit_code, said
    assert "with option `token` or `tokenFile`, of a pipeline `token`" in said
    assert WRONG not in said


def test_mistakes_about_tls_and_tokens_are_told_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "name: p\n"
        "broker: ister://192.0.2.1:6655\n"
        f"token: {WRONG}\n"
        "tls_ca: ca.pem\n"
        "tls_key: client.key\n"
        "options:\n"
        "  tokenFile: /run/secrets/token\n"
        "sources: {rows: {topic: /default/rows}}\n"
        "sinks: [{console: true, from: rows}]\n"
    )

    said = Shell().run("pipeline", "validate", str(file), code=2)

    text = (said.stdout + said.stderr).decode()
    for line in (
        ":3: `token` is for everybody who reads this file: write `${file:PATH}` or `${env:NAME}`",
        ":4: `tls_ca` is for TLS: write `broker` as isters://host:port",
        ":5: `tls_key` is for TLS: write `broker` as isters://host:port",
        ":5: `tls_cert` and `tls_key` belong together: give both, or none",
        ":7: option `tokenFile` is said with the key `token`",
    ):
        assert f"{file.name}{line}" in text
    assert WRONG not in text


def test_a_token_that_would_go_in_the_open_is_a_mistake_of_the_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "name: p\n"
        "broker: ister://192.0.2.1:6655\n"
        "sources: {rows: {topic: /default/rows}}\n"
        "sinks: [{console: true, from: rows}]\n"
        "token: ${env:OF_TESTS}\n"
    )

    said = Shell(OF_TESTS=TOKEN).run("pipeline", "validate", str(file), code=2)

    text = (said.stdout + said.stderr).decode()
    assert f"{file.name}:2: url 'ister://192.0.2.1:6655' is without TLS, so anybody" in text
    assert TOKEN not in text
