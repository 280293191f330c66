"""The image of the topics that a shard decides by (spec 2.14; B12)."""

from __future__ import annotations

import pytest

from kohort.group.coordinator.state.topics_image import (
    NO_TOPICS,
    TopicImage,
    TopicsImage,
    metadata_hash,
    topic_hash,
)

A = TopicImage(b"a" * 16, "a", 3)
B = TopicImage(b"b" * 16, "b", 2, (frozenset({"r1"}), frozenset({"r2"})))


def test_an_image_never_changes() -> None:
    first = TopicsImage.of([A])
    second = first.with_topic(B)
    assert set(first.by_name) == {"a"}
    assert second.by_id[B.topic_id] is B
    assert set(second.without(["a"]).by_id) == {B.topic_id}
    with pytest.raises(TypeError):
        first.by_name["b"] = B  # type: ignore[index]


def test_a_topic_made_again_replaces_the_old_id() -> None:
    again = A._replace(topic_id=b"c" * 16)
    image = TopicsImage.of([A, B]).with_topic(again)
    assert set(image.by_id) == {b"c" * 16, B.topic_id}


def test_the_hash_follows_what_an_assignor_sees() -> None:
    image = TopicsImage.of([A, B])
    both = metadata_hash(image, ["a", "b"])
    assert metadata_hash(image, ["b", "a", "a", "missing"]) == both
    assert metadata_hash(NO_TOPICS, ["a"]) == metadata_hash(image, []) == 0
    others = [
        A._replace(partitions=4),
        A._replace(topic_id=b"x" * 16),
        A._replace(racks=(frozenset({"r1"}),) * 3),
    ]
    hashes = {metadata_hash(image.with_topic(t), ["a", "b"]) for t in others}
    assert len(hashes | {both}) == 4
    assert -(1 << 63) <= both < 1 << 63
    assert topic_hash(A) == topic_hash(A._replace())
