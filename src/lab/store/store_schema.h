/* The tables of the store. A change needs a new version number and a step in store.c that upgrades older stores. */
#ifndef CARRY_LAB_STORE_SCHEMA_H
#define CARRY_LAB_STORE_SCHEMA_H

#define CARRY_STORE_APPLICATION 0x43617279 /* "Cary", by which file(1) and this program recognise a store */
#define CARRY_STORE_VERSION 1

#define CARRY_STORE_SCHEMA                                                                                             \
    "CREATE TABLE machines(id INTEGER PRIMARY KEY, facts TEXT NOT NULL UNIQUE);"                                       \
    "CREATE TABLE runs(id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, name TEXT NOT NULL, command TEXT "    \
    "NOT "                                                                                                             \
    "NULL, spec TEXT NOT NULL, folder TEXT NOT NULL, commit_hash TEXT NOT NULL, dirty INTEGER NOT NULL, machine "      \
    "INTEGER NOT NULL REFERENCES machines(id), started REAL NOT NULL, ended REAL, state TEXT NOT NULL, decision TEXT " \
    "NOT NULL DEFAULT '', note TEXT NOT NULL DEFAULT '', pid INTEGER NOT NULL, process_start INTEGER NOT NULL, boot "  \
    "TEXT NOT NULL, host TEXT NOT NULL);"                                                                              \
    "CREATE INDEX runs_by_name ON runs(name, id);"                                                                     \
    "CREATE TABLE results(id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, "        \
    "problem "                                                                                                         \
    "TEXT NOT NULL, method TEXT NOT NULL, device TEXT NOT NULL, reason TEXT NOT NULL, planned INTEGER NOT NULL, "      \
    "products INTEGER NOT NULL, median REAL, spread REAL, flops REAL, bytes REAL, workspace REAL, tokens REAL, share " \
    "REAL, error REAL, error_absolute REAL, bound REAL, gemm_gflops REAL, copy_gbytes_s REAL);"                        \
    "CREATE INDEX results_by_run ON results(run);"                                                                     \
    "CREATE TABLE samples(result INTEGER NOT NULL REFERENCES results(id) ON DELETE CASCADE, position INTEGER NOT "     \
    "NULL, seconds REAL NOT NULL, PRIMARY KEY(result, position)) WITHOUT ROWID;"                                       \
    "CREATE TABLE criteria(id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, side "  \
    "TEXT NOT NULL, text TEXT NOT NULL, value REAL, bound REAL, verdict TEXT NOT NULL, reason TEXT NOT NULL);"         \
    "CREATE INDEX criteria_by_run ON criteria(run);"                                                                   \
    "CREATE TABLE artefacts(run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, name TEXT NOT NULL, content "  \
    "BLOB NOT NULL, PRIMARY KEY(run, name));"                                                                          \
    "CREATE TABLE metrics(id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, step "   \
    "INTEGER NOT NULL, name TEXT NOT NULL, value REAL);"                                                               \
    "CREATE INDEX metrics_by_run ON metrics(run, name, step);"                                                         \
    "CREATE TABLE jobs(id INTEGER PRIMARY KEY AUTOINCREMENT, system TEXT NOT NULL, name TEXT NOT NULL, arguments "     \
    "TEXT "                                                                                                            \
    "NOT NULL, folder TEXT NOT NULL, state TEXT NOT NULL, external TEXT NOT NULL DEFAULT '', log TEXT NOT NULL "       \
    "DEFAULT '', submitted REAL NOT NULL, started REAL, ended REAL, code INTEGER, pid INTEGER, process_start "         \
    "INTEGER, "                                                                                                        \
    "boot TEXT, host TEXT);"

#endif
