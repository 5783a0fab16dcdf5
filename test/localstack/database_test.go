package localstack

import (
	"testing"
)

func TestDatabasesAreMigratedAndIsolated(t *testing.T) {
	t.Parallel()
	one, two := Database(t), Database(t)
	if one == two {
		t.Fatalf("two databases have one address: %s", one)
	}
	const tables = "SELECT count(*)::text FROM pg_tables WHERE schemaname = 'postrider'"
	if n := query(t, one, tables); n == "0" {
		t.Error("tables in schema postrider: got none, want the migrated ones")
	}
	query(t, one, "CREATE TABLE public.mine AS SELECT 1 AS n")
	if n := query(t, two, "SELECT count(*)::text FROM pg_tables WHERE tablename = 'mine'"); n != "0" {
		t.Errorf("a table made in one database is seen in the other")
	}
}

func TestAnEmptyDatabaseIsNotMigrated(t *testing.T) {
	t.Parallel()
	if n := query(t, EmptyDatabase(t), "SELECT count(*)::text FROM pg_namespace WHERE nspname = 'postrider'"); n != "0" {
		t.Error("schema postrider: got it, want none")
	}
}

func TestADatabaseIsDroppedWithItsTest(t *testing.T) {
	t.Parallel()
	var name string
	t.Run("use", func(t *testing.T) { name = query(t, Database(t), "SELECT current_database()") })
	if n := query(t, EmptyDatabase(t), "SELECT count(*)::text FROM pg_database WHERE datname = '"+name+"'"); n != "0" {
		t.Errorf("database %s after its test: still there", name)
	}
}

// Test processes of several packages share one server; each has its own idea of who makes the template.
func TestProcessesThatShareAServerShareTheTemplate(t *testing.T) {
	t.Parallel()
	p := StartPostgres(t, PostgresOptions{})
	if _, err := p.CreateDatabase(t.Context(), "postrider_test_20200101_left_by_a_killed_run"); err != nil {
		t.Fatal(err)
	}

	const processes = 4
	names := make(chan string, processes)
	for range processes {
		go func() {
			server := &sharedPostgres{url: p.DSN("postgres")}
			name, err := server.template(t.Context())
			if err != nil {
				t.Errorf("make or find the template: %v", err)
			}
			names <- name
		}()
	}
	first := <-names
	for range processes - 1 {
		if name := <-names; name != first {
			t.Errorf("template: got %s and %s, want one", first, name)
		}
	}
	databases := query(t, p.DSN("postgres"), "SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_database WHERE datname LIKE 'postrider%'")
	if databases != first {
		t.Errorf("databases left on the server: got %s, want only the template %s", databases, first)
	}
}

func TestTheDatabaseInADSNIsReplaced(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"postgres://u:p@h:1/x?sslmode=disable": "postgres://u:p@h:1/new?sslmode=disable",
		"postgresql://h":                       "postgresql://h/new",
		"host=h user=u dbname=x":               "host=h user=u dbname=x dbname=new",
	} {
		if got := (&sharedPostgres{url: from}).dsn("new"); got != want {
			t.Errorf("dsn of %q: got %q, want %q", from, got, want)
		}
	}
}
