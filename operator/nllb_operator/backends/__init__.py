"""Where a fleet lives: an API server (`kubernetes`) or processes of this machine (`local`), behind one protocol."""
