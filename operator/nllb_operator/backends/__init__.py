"""Where a fleet lives: an API server (`kubernetes`) or local processes (`local`), behind one protocol."""
