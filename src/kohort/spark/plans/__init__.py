"""Spark's own plans, seen through the JVM: what they say, and plans that are made once.

    logical.py     an analyzed plan: narrow or stateful, and columns that follow a row through it
    templates.py   a function's logical plan, made once, into which each batch's frames are put
    physical.py    a physical plan, into which each batch's RDDs are put

Imports nothing of `kohort.spark`. Spark's classic API is needed.
"""
