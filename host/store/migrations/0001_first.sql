CREATE TABLE meta (
	key   TEXT PRIMARY KEY,
	value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE declaration (
	one        INTEGER PRIMARY KEY CHECK (one = 1),
	generation INTEGER NOT NULL,
	document   BLOB NOT NULL,
	received   TEXT NOT NULL
);

CREATE TABLE ledger (
	resource    TEXT PRIMARY KEY,
	status      TEXT NOT NULL,
	reason      TEXT NOT NULL,
	detail      TEXT NOT NULL,
	output      TEXT NOT NULL,
	generation  INTEGER NOT NULL,
	want        TEXT NOT NULL,
	at          TEXT NOT NULL,
	writing     INTEGER NOT NULL DEFAULT 0,
	before      TEXT NOT NULL DEFAULT '',
	before_want TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;

CREATE TABLE owned (
	resource   TEXT PRIMARY KEY,
	made       TEXT NOT NULL,
	generation INTEGER NOT NULL,
	wrote      BLOB,
	undo       BLOB,
	-- What is needed to undo it did not travel in the recovery copy.
	partial    INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE unit_action (
	resource TEXT NOT NULL,
	unit     TEXT NOT NULL,
	verb     TEXT NOT NULL,
	PRIMARY KEY (resource, unit, verb)
) WITHOUT ROWID;

-- What the control plane was told: digests of ledger entries and of what is owned.
CREATE TABLE told (
	resource TEXT NOT NULL,
	what     TEXT NOT NULL CHECK (what IN ('result', 'owned')),
	digest   TEXT NOT NULL,
	PRIMARY KEY (resource, what)
) WITHOUT ROWID;

CREATE TABLE outbox (
	seq  INTEGER PRIMARY KEY AUTOINCREMENT,
	type TEXT NOT NULL,
	body BLOB NOT NULL
);
