"""Pipelines of DataFrames: what a step is, and how a micro-batch of steps becomes one transaction.

    graph.py       sources, references and steps, and which of them form one stage
    rows.py        rows with hidden columns as records and verdicts, column by column
    columns.py     hidden columns, verdicts (`reject`, `retry`), typed values
    analysing.py   schemas, stages and refusals, found out before anything is read
    references.py  topics as tables, latest row a key, kept by the driver
    narrow.py      one micro-batch of narrow steps
    single_pass.py the same as one Spark job, where a stage fills one table row by row
    guards.py      a step's plan with the rows that fail or are filtered still in it
    judging.py     what becomes of every input of a batch
    failing.py     copies of failed rows for retry topics and the dead-letter topic
    books.py       fences, counts and ledger rows of a batch, in the database's transaction
    isolating.py   which records make a batch fail
    trials.py      trials of a batch that has failed, which change nothing
    stage.py       one stage's function for `foreachBatch`

It imports `kohort.retry`, `kohort.client`, `kohort.spark.plans` and `kohort.spark.outputs`;
`kohort.spark` runs it.
"""
