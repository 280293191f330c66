"""Encode and decode keys and values: JSON, text, integers; as an extra Avro, Protobuf, JSON Schema.

    from kohort.serdes import JsonSerde, Serdes, StringSerde, Undecodable

    orders = Serdes(key=StringSerde(), value=JsonSerde())
    producer.send("orders", **orders.to_bytes("orders", value={"id": 7}, key="a"))
    for record in orders.each(consumer):
        match record.value:
            case Undecodable() as bad:
                print(f"{record.topic}-{record.partition} {record.offset}: {bad.error}", bad.raw)
            case order:
                print(order["id"])

With a schema registry (`pip install 'kohort[registry]'`):

    from kohort.serdes import AvroSerde, SchemaRegistry

    registry = SchemaRegistry("http://localhost:8081")
    orders = Serdes(key=StringSerde(), value=AvroSerde(registry, schema))
"""

from kohort.serdes.any_kind import RegistrySerde
from kohort.serdes.avro import AvroSerde
from kohort.serdes.basic import (
    BytesSerde,
    IntegerSerde,
    JsonSerde,
    LongSerde,
    Serde,
    StringSerde,
)
from kohort.serdes.json_schema import JsonSchemaSerde
from kohort.serdes.protobuf import ProtobufSerde
from kohort.serdes.records import Decoded, KeyAndValue, Serdes, Undecodable
from kohort.serdes.registry import Reference, Schema, SchemaRegistry

__all__ = [
    "AvroSerde",
    "BytesSerde",
    "Decoded",
    "IntegerSerde",
    "JsonSchemaSerde",
    "JsonSerde",
    "KeyAndValue",
    "LongSerde",
    "ProtobufSerde",
    "Reference",
    "RegistrySerde",
    "Schema",
    "SchemaRegistry",
    "Serde",
    "Serdes",
    "StringSerde",
    "Undecodable",
]
