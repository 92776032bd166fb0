-- Operators who come from elsewhere, with the key that they prove.
CREATE TABLE operators (
  name         TEXT PRIMARY KEY,
  key          TEXT NOT NULL UNIQUE,
  role         TEXT NOT NULL CHECK (role IN ('reader', 'publisher', 'admin')),
  declarations TEXT NOT NULL,
  packages     TEXT NOT NULL,
  added_at     INTEGER NOT NULL,
  added_by     TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The fingerprint of the key of whoever asked for a write; empty: none.
ALTER TABLE audit ADD COLUMN key TEXT NOT NULL DEFAULT '';
