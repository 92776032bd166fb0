-- Times are microseconds since 1970 UTC; 0 means never. Lists and documents are
-- JSON. States are text.

CREATE TABLE nodes (
  id               INTEGER PRIMARY KEY,
  name             TEXT NOT NULL UNIQUE,
  state            TEXT NOT NULL CHECK (state IN ('enrolled', 'retired', 'revoked')),
  labels           TEXT NOT NULL,
  machine          TEXT NOT NULL,
  host_version     TEXT NOT NULL,
  enrolled_at      INTEGER NOT NULL,
  profile          TEXT NOT NULL,
  profile_digest   TEXT NOT NULL,
  inventory_digest TEXT NOT NULL,
  briefing         TEXT NOT NULL,
  store_id         TEXT NOT NULL,
  floor            INTEGER NOT NULL,
  held             INTEGER NOT NULL,
  ahead            INTEGER NOT NULL CHECK (ahead IN (0, 1)),
  refused          INTEGER NOT NULL,
  refused_why      TEXT NOT NULL,
  reported         INTEGER NOT NULL,
  reported_state   TEXT NOT NULL,
  applied          INTEGER NOT NULL,
  kept             TEXT NOT NULL,
  last_contact     INTEGER NOT NULL,
  drift            INTEGER NOT NULL
) STRICT;

CREATE TABLE inventories (
  node      INTEGER PRIMARY KEY REFERENCES nodes (id),
  inventory TEXT NOT NULL
) STRICT;

CREATE TABLE identities (
  key         TEXT PRIMARY KEY,
  node        INTEGER NOT NULL REFERENCES nodes (id),
  machine     TEXT NOT NULL,
  enrolled_at INTEGER NOT NULL,
  revoked_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX identities_node ON identities (node);

CREATE TABLE tokens (
  hash       TEXT PRIMARY KEY,
  name       TEXT NOT NULL,
  labels     TEXT NOT NULL,
  replaces   TEXT NOT NULL,
  issued_at  INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  used_at    INTEGER NOT NULL,
  used_by    TEXT NOT NULL,
  node       TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE revisions (
  id       INTEGER PRIMARY KEY,
  name     TEXT NOT NULL,
  revision INTEGER NOT NULL,
  removed  INTEGER NOT NULL CHECK (removed IN (0, 1)),
  document TEXT NOT NULL,
  digest   TEXT NOT NULL,
  who      TEXT NOT NULL,
  door     TEXT NOT NULL,
  at       INTEGER NOT NULL,
  UNIQUE (name, revision)
) STRICT;

-- What nodes get is stored once for all nodes that get the same.
CREATE TABLE bodies (
  id        INTEGER PRIMARY KEY AUTOINCREMENT,
  hash      BLOB NOT NULL UNIQUE,
  resources TEXT NOT NULL
) STRICT;

CREATE TABLE body_blobs (
  sum  BLOB NOT NULL,
  body INTEGER NOT NULL REFERENCES bodies (id) ON DELETE CASCADE,
  PRIMARY KEY (sum, body)
) STRICT, WITHOUT ROWID;
CREATE INDEX body_blobs_body ON body_blobs (body);

CREATE TABLE compiled (
  node       INTEGER NOT NULL REFERENCES nodes (id),
  generation INTEGER NOT NULL,
  body       INTEGER NOT NULL REFERENCES bodies (id),
  digest     TEXT NOT NULL,
  released   TEXT NOT NULL,
  cause      INTEGER REFERENCES revisions (id),
  at         INTEGER NOT NULL,
  PRIMARY KEY (node, generation)
) STRICT, WITHOUT ROWID;
CREATE INDEX compiled_cause ON compiled (cause) WHERE cause IS NOT NULL;
CREATE INDEX compiled_body ON compiled (body);

CREATE TABLE resources (
  id   INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE results (
  node       INTEGER NOT NULL REFERENCES nodes (id),
  resource   INTEGER NOT NULL REFERENCES resources (id),
  status     TEXT NOT NULL,
  bad        INTEGER NOT NULL CHECK (bad IN (0, 1)),
  reason     TEXT NOT NULL,
  detail     TEXT NOT NULL,
  output     TEXT NOT NULL,
  generation INTEGER NOT NULL,
  want       BLOB NOT NULL,
  at         INTEGER NOT NULL,
  PRIMARY KEY (node, resource)
) STRICT, WITHOUT ROWID;
CREATE INDEX results_bad ON results (node) WHERE bad = 1;

CREATE TABLE owned (
  node       INTEGER NOT NULL REFERENCES nodes (id),
  resource   INTEGER NOT NULL REFERENCES resources (id),
  made       TEXT NOT NULL,
  generation INTEGER NOT NULL,
  wrote      TEXT NOT NULL,
  undo       TEXT NOT NULL,
  partial    INTEGER NOT NULL CHECK (partial IN (0, 1)),
  PRIMARY KEY (node, resource)
) STRICT, WITHOUT ROWID;

CREATE TABLE sequences (
  node   INTEGER NOT NULL REFERENCES nodes (id),
  store  TEXT NOT NULL,
  number INTEGER NOT NULL,
  PRIMARY KEY (node, store)
) STRICT, WITHOUT ROWID;

CREATE TABLE reports (
  id         INTEGER PRIMARY KEY,
  node       INTEGER NOT NULL REFERENCES nodes (id),
  generation INTEGER NOT NULL,
  pass       INTEGER NOT NULL,
  cause      TEXT NOT NULL,
  state      TEXT NOT NULL,
  started    INTEGER NOT NULL,
  ended      INTEGER NOT NULL,
  received   INTEGER NOT NULL,
  results    INTEGER NOT NULL,
  ledger     TEXT NOT NULL
) STRICT;
CREATE INDEX reports_node ON reports (node, id);

CREATE TABLE events (
  id       INTEGER PRIMARY KEY,
  node     INTEGER NOT NULL REFERENCES nodes (id),
  kind     TEXT NOT NULL,
  resource TEXT NOT NULL,
  detail   TEXT NOT NULL,
  at       INTEGER NOT NULL,
  received INTEGER NOT NULL
) STRICT;
CREATE INDEX events_node ON events (node, id);

CREATE TABLE audit (
  id     INTEGER PRIMARY KEY,
  at     INTEGER NOT NULL,
  who    TEXT NOT NULL,
  door   TEXT NOT NULL,
  what   TEXT NOT NULL,
  detail TEXT NOT NULL
) STRICT;
