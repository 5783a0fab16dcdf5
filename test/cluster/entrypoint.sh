#!/bin/sh
# Does what charts rely on the official image's entrypoint for: makes the database once, then becomes the server.
set -eu
if [ "${1:-postgres}" != postgres ]; then
	exec "$@"
fi
# What was cut short looks whole to Postgres: a container that dies here begins again.
if [ ! -e "$PGDATA/made-whole" ]; then
	: "${POSTGRES_PASSWORD:?the database needs a password}"
	user=${POSTGRES_USER:-postgres}
	database=${POSTGRES_DB:-$user}
	mkdir -p "$PGDATA"
	chmod 700 "$PGDATA"
	rm -rf "$PGDATA"/*
	printf '%s\n' "$POSTGRES_PASSWORD" >/tmp/password
	initdb --pgdata="$PGDATA" --username="$user" --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8
	rm -f /tmp/password
	echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
	echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
	if [ "$database" != postgres ]; then
		echo "CREATE DATABASE \"$database\";" | postgres --single -D "$PGDATA" postgres
	fi
	: >"$PGDATA/made-whole"
fi
[ $# -gt 0 ] || set -- postgres
exec "$@"
