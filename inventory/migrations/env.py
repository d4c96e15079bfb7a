"""Run by alembic: the migrations over the connection, and in the transaction, that `upgrade` was given."""

from alembic import context

given = context.config.attributes
context.configure(
    connection=given["connection"], version_table_schema=given["schema"], transaction_per_migration=False
)
with context.begin_transaction():
    context.run_migrations()
