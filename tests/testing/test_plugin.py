"""The pytest plugin, as a user's test run meets it: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import kohort
from tests.patience import PATIENCE_S

PLACE = Path(kohort.__file__).parents[1]
ENV = {**os.environ, "PYTHONPATH": str(PLACE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run(directory: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_it.py").write_text(textwrap.dedent(code))
    (directory / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "kohort.testing.plugin",
            "-q",
            "--strict-markers",
            *options,
        ],
        cwd=directory,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )


def test_the_fixtures(tmp_path: Path):
    """One cluster for all, a topic for each, faults cleared, dead nodes up again, own shapes."""
    done = run(
        tmp_path,
        """
        import pytest
        from kohort import Consumer, Producer

        clusters, topics = [], []

        def test_first(kafka_cluster, kafka_topic, kafka_faults):
            clusters.append(kafka_cluster)
            topics.append(kafka_topic)
            kafka_faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER")
            with Producer(bootstrap_servers=kafka_cluster.bootstrap) as producer:
                assert producer.send(kafka_topic, b"v").result(60).offset == 0
            assert kafka_cluster.requests.of("Produce", error="NOT_LEADER_OR_FOLLOWER")
            kafka_faults.fail("Metadata", "UNKNOWN_SERVER_ERROR", times=1000)

        def test_second(kafka_cluster, kafka_topic):
            assert clusters == [kafka_cluster] and kafka_topic not in topics
            assert not list(kafka_cluster.faults) and not list(kafka_cluster.requests.of("Produce"))
            with pytest.raises(Exception, match="UNKNOWN_TOPIC"):
                kafka_cluster.leader_of(topics[0], 0)
            kafka_cluster.stop()

        def test_third(kafka_cluster):
            assert clusters == [kafka_cluster] and kafka_cluster.is_running

        @pytest.mark.kafka(nodes=3, partitions=6)
        class TestFailover:
            def test_down(self, kafka_cluster, kafka_topic):
                assert kafka_cluster.nodes == [1, 2, 3] and kafka_cluster is not clusters[0]
                assert kafka_cluster.leader_of(kafka_topic, 5) > 0
                kafka_cluster.kill_node(2)

            @pytest.mark.kafka(partitions=2)
            def test_up_again(self, kafka_cluster, kafka_topic):
                assert sorted(kafka_cluster.running) == [1, 2, 3]
                with pytest.raises(Exception, match="UNKNOWN_TOPIC"):
                    kafka_cluster.leader_of(kafka_topic, 2)

        @pytest.mark.kafka(message_max_bytes=5000)
        def test_settings(kafka_cluster):
            assert kafka_cluster.config.message_max_bytes == 5000

        @pytest.mark.parametrize("odd", ["a/b c", "ü" * 300])
        def test_names_of_topics(kafka_topic, odd):
            assert kafka_topic.isascii()

        def test_virtual_time(kafka_clock):
            from kohort.testing import Cluster
            with Cluster(clock=kafka_clock) as cluster:
                with Consumer(bootstrap_servers=cluster.bootstrap, group_id="g") as consumer:
                    consumer.subscribe(["t"])
                    consumer.poll(100)
            assert kafka_clock.elapsed_s > 99
        """,
    )
    assert "9 passed" in done.stdout, done.stdout + done.stderr


def test_a_topic_that_a_group_has_committed_to_is_deleted(tmp_path: Path):
    done = run(
        tmp_path,
        """
        import pytest
        from kohort import Consumer, Producer

        topics = []

        @pytest.mark.parametrize("again", [False, True])
        def test_it(kafka_cluster, kafka_topic, again):
            assert len(topics) == again
            for topic in topics:
                with pytest.raises(Exception, match="UNKNOWN_TOPIC"):
                    kafka_cluster.leader_of(topic, 0)
            topics.append(kafka_topic)
            with Producer(bootstrap_servers=kafka_cluster.bootstrap) as producer:
                producer.send(kafka_topic, b"v").result(60)
            with Consumer(
                bootstrap_servers=kafka_cluster.bootstrap,
                group_id="g",
                auto_offset_reset="earliest",
            ) as consumer:
                consumer.subscribe([kafka_topic])
                while not consumer.poll(1):
                    pass
                consumer.commit()
            if again:
                kafka_cluster.delete_topic(kafka_topic)
        """,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_cluster_is_there_for_the_whole_session(tmp_path: Path):
    """One for each shape, in any order of the tests. Each change of shape made a new one."""
    done = run(
        tmp_path,
        """
        import pytest

        plain, pairs, small = set(), set(), set()
        pair = pytest.mark.kafka(nodes=2)

        def test_plain(kafka_cluster):
            plain.add(kafka_cluster)

        @pair
        def test_pair(kafka_cluster):
            pairs.add(kafka_cluster)

        @pytest.mark.kafka(users={"alice": "secret"}, message_max_bytes=5000, partitions=2)
        def test_small(kafka_cluster):
            small.add(kafka_cluster)

        def test_plain_again(kafka_cluster):
            plain.add(kafka_cluster)

        @pair
        def test_pair_again(kafka_cluster):
            pairs.add(kafka_cluster)

        @pytest.mark.kafka(message_max_bytes=5000, users={"alice": "secret"})
        class TestSmall:
            def test_again(self, kafka_cluster):
                small.add(kafka_cluster)

        def test_all(request):
            assert len(plain) == len(pairs) == len(small) == 1
            assert len(plain | pairs | small) == 3
            assert all(cluster.is_running for cluster in plain | pairs | small)

        @pytest.fixture(scope="session", autouse=True)
        def ended():
            yield
            assert not any(cluster.is_running for cluster in plain | pairs | small)
        """,
    )
    assert "7 passed" in done.stdout, done.stdout + done.stderr
    assert "error" not in done.stdout, done.stdout


def test_time_and_settings_are_those_of_the_start_again(tmp_path: Path):
    done = run(
        tmp_path,
        """
        import time
        import pytest
        from kohort import Producer

        first = []

        def stored_at(cluster, topic, value=b"v"):
            config = {"message.timestamp.type": "LogAppendTime"}
            cluster.create_topic(topic, config=config)
            with Producer(bootstrap_servers=cluster.bootstrap) as producer:
                return producer.send(topic, value).result(60).timestamp_ms / 1000

        def test_a_day_passes(kafka_cluster):
            first.append((kafka_cluster, kafka_cluster.bootstrap, kafka_cluster.config))
            kafka_cluster.advance(86_400)
            assert stored_at(kafka_cluster, "a") - time.time() > 80_000

        def test_it_is_today(kafka_cluster):
            assert first == [(kafka_cluster, kafka_cluster.bootstrap, kafka_cluster.config)]
            assert abs(stored_at(kafka_cluster, "b") - time.time()) < 3_600

        def test_other_settings(kafka_cluster):
            kafka_cluster.restart(message_max_bytes=5_000, log_retention_ms=1)
            assert kafka_cluster.config.message_max_bytes == 5_000

        def test_the_settings_of_before(kafka_cluster):
            assert first == [(kafka_cluster, kafka_cluster.bootstrap, kafka_cluster.config)]
            assert stored_at(kafka_cluster, "c", b"v" * 10_000) > 0

        def test_stopped_with_other_settings(kafka_cluster):
            kafka_cluster.restart(message_max_bytes=5_000)
            kafka_cluster.stop()

        def test_the_settings_are_still_those(kafka_cluster):
            assert first == [(kafka_cluster, kafka_cluster.bootstrap, kafka_cluster.config)]

        @pytest.mark.kafka(nodes=2)
        class TestNodes:
            def test_fewer(self, kafka_cluster):
                first[:] = [(kafka_cluster, kafka_cluster.bootstrap, kafka_cluster.config)]
                kafka_cluster.restart(nodes=1)

            def test_all(self, kafka_cluster):
                assert first == [(kafka_cluster, kafka_cluster.bootstrap, kafka_cluster.config)]
                assert kafka_cluster.running == [1, 2]
        """,
    )
    assert "8 passed" in done.stdout, done.stdout + done.stderr


def test_a_defect_in_an_answering_function_fails_its_test(tmp_path: Path):
    done = run(
        tmp_path,
        """
        def test_it(kafka_cluster, kafka_faults):
            kafka_faults.answer("Metadata", lambda request, version: 1 / 0)
            kafka_cluster.create_topic("t")
            from kohort import Producer
            with Producer(bootstrap_servers=kafka_cluster.bootstrap) as producer:
                producer.send("t", b"v").result(60)

        def test_next(kafka_cluster):
            assert not list(kafka_cluster.faults)
        """,
    )
    assert "ZeroDivisionError" in done.stdout
    assert "2 passed, 1 error" in done.stdout


def test_it_imports_no_kohort_before_a_fixture_is_used(tmp_path: Path):
    """Everybody who has Kohort installed pays for the plugin at every run."""
    code = "import sys\ndef test_it():\n"
    code += "    assert not [m for m in sys.modules if m.startswith('kohort.broker')]\n"
    code += "    assert not [m for m in sys.modules if m.startswith('kohort.client')]\n"
    assert "1 passed" in run(tmp_path, code).stdout
    assert "@pytest.mark.kafka(nodes=1" in run(tmp_path, code, "--markers").stdout


def test_it_is_an_entry_point():
    """Of what is installed: pytest finds it there, in a wheel, too."""
    (found,) = entry_points(group="pytest11", name="kohort")
    assert found.value == "kohort.testing.plugin"
