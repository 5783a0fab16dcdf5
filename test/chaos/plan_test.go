package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestASeedMakesTheSamePlanEachTime(t *testing.T) {
	t.Parallel()
	text := func(seed uint64) string {
		plan := MakePlan(everything(), seed, time.Minute)
		var b strings.Builder
		plan.Print(&b)
		return b.String() + fmt.Sprint(plan.Script)
	}
	once := text(1)
	if again := text(1); again != once {
		t.Error("seed 1 made two plans")
	}
	if text(2) == once {
		t.Error("seeds 1 and 2 made the same plan")
	}
}

func TestAPlanEndsWithTheLoadAndKeepsEachActorsOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		ends := map[string]time.Duration{}
		for _, a := range MakePlan(everything(), seed, 30*time.Second).Actions {
			if a.At < 0 || a.At+a.For > 30*time.Second {
				t.Errorf("seed %d: %s is over after the load", seed, a)
			}
			if a.At < ends[a.Who] && a.Do != keepOrder {
				t.Errorf("seed %d: %s begins while the one before is going on", seed, a)
			}
			ends[a.Who] = a.At + a.For
		}
	}
}

func TestALongPlanHasSomethingOfEverything(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, a := range MakePlan(everything(), fixedSeed, 10*time.Minute).Actions {
		who, _, _ := strings.Cut(a.Who, "-")
		seen[who+" "+string(a.Do)] = true
	}
	for _, who := range []string{"dispatcher", "ingest", "controller"} {
		for _, do := range []deed{kill, stop} {
			if !seen[who+" "+string(do)] {
				t.Errorf("no %s %s", who, do)
			}
		}
	}
	for _, want := range []string{
		"postgres " + string(stop), "postgres " + string(crash), "kubernetes " + string(stop),
		"wire " + string(cutAll), "wire " + string(cutOne), "wire " + string(delayAll), "wire " + string(delayOne), "wire " + string(swallowAll), "wire " + string(swallowOne),
		"plain " + string(readdress), "plain " + string(crowd), "rated " + string(hurry), "plain " + string(pause), "turning " + string(keepOrder),
	} {
		if !seen[want] {
			t.Errorf("nothing like: %s", want)
		}
	}
}

func TestScenariosAreChosenByName(t *testing.T) {
	t.Parallel()
	all, err := Choose("all")
	if err != nil || len(all) != len(Names()) {
		t.Errorf("all: got %d, %v", len(all), err)
	}
	two, err := Choose("rate, alone")
	if err != nil || !slices.Equal([]string{two[0].Name, two[1].Name}, []string{"rate", "alone"}) {
		t.Errorf("two: got %v, %v", two, err)
	}
	if _, err := Choose("nothing"); err == nil || !strings.Contains(err.Error(), "everything") {
		t.Errorf("an unknown one: got %v", err)
	}
}
