-- A node that retires, and a node that was not heard of since the store was
-- restored from a backup.
ALTER TABLE nodes ADD COLUMN retiring INTEGER NOT NULL DEFAULT 0 CHECK (retiring IN (0, 1));
ALTER TABLE nodes ADD COLUMN unheard INTEGER NOT NULL DEFAULT 0 CHECK (unheard IN (0, 1));
ALTER TABLE compiled ADD COLUMN final INTEGER NOT NULL DEFAULT 0 CHECK (final IN (0, 1));
