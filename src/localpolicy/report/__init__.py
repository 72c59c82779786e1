"""One self-contained HTML page: the verdict first, then what it rests on."""
