"""The dashboards as code: house style, queries, and one module per dashboard."""
