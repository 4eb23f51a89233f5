"""What the page shows, as records that pure functions make: drawn by ``static/view.mjs``."""
