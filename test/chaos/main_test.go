package chaos

import (
	"testing"

	"github.com/postrider/postrider/test/localstack"
)

func TestMain(m *testing.M) { localstack.Main(m) }
