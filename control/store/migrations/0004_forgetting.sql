-- What is forgotten after a time has to be found. A node that left and of which
-- only name, end and keys are kept.
ALTER TABLE nodes ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0 CHECK (forgotten IN (0, 1));

-- The order in which the stores of one host came.
ALTER TABLE sequences ADD COLUMN began INTEGER NOT NULL DEFAULT 0;

-- The content that a revision refers to.
CREATE TABLE revision_blobs (
  sum      BLOB NOT NULL,
  revision INTEGER NOT NULL REFERENCES revisions (id) ON DELETE CASCADE,
  PRIMARY KEY (sum, revision)
) STRICT, WITHOUT ROWID;
CREATE INDEX revision_blobs_revision ON revision_blobs (revision);
INSERT OR IGNORE INTO revision_blobs (sum, revision)
  SELECT unhex(json_extract(resource.value, '$.file.sha256')), r.id FROM revisions r, json_each(r.document, '$.resources') resource
  WHERE json_extract(resource.value, '$.file.content') IS NULL AND json_extract(resource.value, '$.file.size') > 0;
