"""What runs by itself: versions of models, the log of a store, refresh, jobs.

**Versions of a model.**

```python
store = streampca.ModelStore("models/nightly")  # or s3://bucket/models, with streampca[obstore]
store.publish(pca, reason="March")  # an immutable version, served from now on
store.load()  # the served one; so does streampca.load("models/nightly")
store.publish(other, promote=False)  # a candidate, to look at
store.promote(2), store.rollback(), store.versions(), store.verify(), store.gc(keep=10)
store.alias("challenger", 2), streampca.load("models/nightly", version="challenger")
store.publish(pca, scores=pca.transform("new.zarr"))  # scores become visible with their model
model, scores = store.load_with_scores()  # always of one version; slices of scores are read lazily
```

```sh
streampca models list models/nightly     # also: show, verify, promote, rollback, diff, export
streampca models alias models/nightly champion 3 --reason "best of March"
streampca models log models/nightly      # who did what, when, why, in which run
streampca models gc models/nightly --keep 10 --dry-run  # what would go, with its bytes
streampca models verify models/nightly --mend  # reads every byte; makes a damaged log whole
streampca models export models/nightly --model served --scores served.zarr  # both of one version
streampca models diff models/nightly 3   # angles, matched components, spectrum, settings
```

A version holds what `save` writes, and a manifest: SHA-256 of every file, settings, plan, cost,
certificate, libraries. One entry of an append-only log commits it. The entry is created only if it
is absent (a hard link; `If-None-Match` in an object store). So whatever dies at whatever step, and
however many write at once, readers get the old version or the new one, whole. Altered, lost or
exchanged files are refused by name; `rollback` passes over damaged versions. Nothing is pickled. An
`IncrementalPCA` is stored with its state: `store.latest().state()` takes further rows.

An alias is a name of one version that can move to another: `champion`, `challenger`. Wherever a
command or `load` takes the number of a version, it takes its alias. What is served is another
matter: `promote` changes that. Every publication, promotion, rollback, alias and removal is an
entry of the log, with user@host, time, `--reason` and the id of the run.

`gc`, and `keep:` of a job, leave the last N published and the last N promoted versions. Whatever N
is, they leave the served version, those with an alias, the one to which `rollback` would go (the
last before it that is whole), and on a local disk those that a process reads or publishes, whatever
a clock says. A dry run of either lists what goes, with its bytes.

A damaged log does not take the store down: every manifest says what its log entry said, and every
entry and `_head.json` say which version is served. `list`, `info`, `promote` and `rollback` work
with what is intact and name the rest on stderr; mending writes the log anew. If the last entry and
`_head.json` are both lost, loading refuses until a promotion or mending says which version is
served, and `gc` waits until the log is mended. Every 16 entries one is a checkpoint of all before:
opening takes at most 19 requests however long the log (0.99 ms at 11 versions, 1.6 to 2.7 ms at
1,160). Small arrays share one uncompressed
`files.zip`, in which Zarr opens them: a publication takes 9 flushes or 4 requests.

**A nightly refresh** finds what changed since the promoted version, does the least work that is
exact, and publishes one version, or nothing. `tests/operations/README.md` has the table of changes.

```sh
streampca refresh configs/nightly.yaml             # one line of JSON on stdout, words on stderr
streampca refresh configs/nightly.yaml --dry-run   # what it would do; also --verify full
streampca config check configs/nightly.yaml        # lines, entries and what misspelt ones are like
streampca config schema                            # for editors
```

With `verify: stat` an old chunk counts as changed if its length or time differ (in an object store
its ETag, in Icechunk what the diff of two snapshots names) and its bytes do too; `verify: full`
reads every byte (of files the first such check is a fit: it notes their checksums). Of a source of
at least 256 MiB the sums of up to 16 spans of rows are kept within `spans: 64MiB` (0.5 MiB each for
256 features); nothing is taken out of a total, it is merged anew. An append writes its own span
alone; every ninth version holds all of them, and where a version between is gone (`keep:`), all
rows are read. A rewritten old chunk is a full fit where the sums are larger than `spans:` allows
(more than 2,000 features); removed rows always are.

**Which rows of a Zarr array count** depends on what is stored, never on the length of the array,
which grows before rows are written:

1. Rows of the served version count, and rows that their writer vouches for: `streampca.append`,
   `streampca.commit_rows`, or an attribute `streampca_rows_committed` that a writer sets last (it
   then decides alone). A commit of Icechunk vouches for no row.
2. Any other row counts if all its chunks are there. What a chunk holds that is older than the
   array's length counts once nothing was written for `settle:` seconds.
3. A row of nothing but the fill value does not count: in all its chunks, or in one chunk whose
   other rows never hold that value.
4. A row that lay behind the end of the array when a refresh looked (removed by a shrink, left by
   an append that died) does not count, served or not, before every chunk of it holds something
   else, or its writer vouches for it anew. Marks of rows behind the end are void likewise.
5. Rows are taken up to the first that does not count, however many follow. If served rows turn
   out to be lost, or an array that is long enough for them is stored anew and does not have them
   yet, nothing is published, whatever an older mark says.
6. A job that is behind says so every night: `behind` (how many samples), `behind_since` and `note`
   (why, and the line that repairs it) in its JSON, and the same on stderr.

`streampca.append("x.zarr", rows)` writes the chunks first and the length last, in one write: an
append that dies did not happen, for any reader. After other writers (`to_zarr(append_dim=)`),
`streampca.commit_rows("x.zarr", rows)` says that so many rows are written. Without either, a row of
zeros cannot be told from one that was lost, so it waits. `missing_chunks: fill` takes all such
rows, and then only what the writer vouches for is known. The same holds for a writer that fills one
chunk, or one shard, column by column, and dies. Zarr leaves the rows that the last chunk of a
shortened array still holds, and shows them when the array grows again. A refresh notes checksums of
them (`last_look.json` in the model store), so what it has seen removed, it knows. What no refresh
saw removed is as if it had not been, and rows that are written again byte by byte as they were wait
for `streampca.commit_rows`: nothing in the store shows them. Of an Icechunk repository a commit is
whole, so nothing settles; `append` and `commit_rows` take the array of a writable session. The
`diff` of two snapshots names the chunks that were written, and their checksums say whether they
changed. Where a snapshot has expired, all chunks are read and compared.

**The gate.** Components keep the signs and order of the promoted version. `gate:` refuses a version
that turned too far, or whose new rows the old model explains badly. Whatever the change is called,
it refuses a version whose total variance is that of the old one many times over, or its inverse
(`max_variance_ratio`, by default 20), one of a source that lost many samples (`max_removed`, by
default .3 of them), and one of another source: at another place with other rows, or with other
features (`--accept-source` takes it). Such a version stays as a candidate, is not computed again,
and `streampca models promote models/nightly 8` takes it. `max_outliers` refuses a version where
the promoted one does not expect that share of the appended rows (`help(streampca.monitor)`).

**Watching rows.** With `monitor: {alpha: 0.01}` every version keeps T^2 and the squared prediction
error of the rows of its fit, which do not change when rows come, and their limits:
`streampca models export models/nightly --distances rows.csv`, `store.latest().distances()`.
`drift.outliers` of the outcome says how many of the appended rows the promoted version does not
expect, and which most.

**Scores** (`scores:`) are part of a version: they become visible in the same commit and go with it.
`path:` names a place for a copy of the served ones, with number and id in the attribute
`streampca_version`. It is taken away just before a commit and put there just after: a process that
dies between leaves none, never those of another model, and the next refresh, or one after a
`rollback`, puts them there. Readers that need model and scores at every moment take both from the
store. Scores of a refresh are written to disk, not to object storage.

**Status.** `streampca status nightly.yaml` looks when it is asked, so that a job that never ran, or
never ended, alarms too. It says which version is served and how old it is, whether its files are
there, how many samples the source holds, how many wait for the next run and how many no writer
vouches for (in chunks before the last new ones that is seen only when they are read), how the last
run ended or whether it goes on (its process, its last sign of life, its progress), the last success
and failure, and what to type next. It exits with 0 fresh, 1 warn, 2 error, 3 cannot tell, by the
windows of `freshness:`; `--all configs/` takes every job of a folder, `--json` and `--oneline` are
for monitors. A run notes its beginning, a sign of life every 30 seconds, and its end in
`<store>.runs`.

**Logs.** The package logs by ``streampca.*`` loggers of Python's ``logging`` and prints nothing of
that itself. ``--log-format json``, ``--log-file`` and ``--log-level`` of every command, or
``logging: {format: json, file: nightly.log}`` of a job, write lines that all have time, level,
logger, run, host, pid, command, job, store, version and message (`logs.py` has the fields and
levels). A log file is appended to; logrotate may move it, or cut it (``copytruncate``). A full disk
loses lines, never a run. The id of a run is also in its JSON, its note and its errors.
``--progress-file run.json`` of any command is what ``<store>.runs`` is for a job: how far the run
is, every 30 seconds, and how it ended; ``streampca status run.json`` reads it. With ``--json`` a
command that fails says so in a line of JSON on stdout, with its exit code and the kind of the error
(``streampca --help`` has the table).
**Metrics and lineage.** With `metrics: nightly.prom` a run replaces that file when it begins and
whenever it ends, in one step and readable for all: what node_exporter's textfile collector takes.
What a failed run did not find out stays as the last one left it. `streampca status nightly.yaml
--metrics` writes it for a job that does not run, or died, and adds `status` and `waiting_rows`.
`configs/schedulers/alerts.yaml` has rules that compare the times in it with Prometheus's clock.
With `lineage: {path: lineage.jsonl, url: http://marquez:5000/api/v1/lineage}` a run is one event of
OpenLineage when it begins (START) and one when it ends: COMPLETE, FAIL (an error, or the gate
refused), ABORT (SIGTERM, Ctrl-C, or another job was first), with the versions, sizes and columns of
the source, the model and its scores. An address has 5 seconds after a run to take what it did not
yet. What cannot be written or delivered is an `UnreportedRunWarning`, and the run has ended as it
has; only a folder for metrics that is not there is refused before anything is read (73).

**Running it.** One job at a time holds a lock. Without locks (object stores) the log decides, and
one version is made of one state of the data. A refresh that is terminated leaves a checkpoint and
exits with 143; the next goes on there (`--no-resume` begins anew) and repeats at most one
checkpoint interval, a minute. Checkpoints lie in `<store>.work`, which is marked; a folder of that
name that streampca did not make is refused, as is a store or a scores path within the source. The
JSON names the version that is `served`, whatever was done. What a killed process left on a local
disk, the next one that writes there removes. Exit codes stand in `configs/nightly.yaml`;
`configs/schedulers/` has a systemd service and timer, a crontab, a Kubernetes CronJob, and an
Airflow DAG, a Dagster job and a Prefect flow that go by them.
"""
