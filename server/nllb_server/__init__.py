"""The HTTP server around one engine. Docstring only, so that nllb_server.wire stays cheap to import."""
