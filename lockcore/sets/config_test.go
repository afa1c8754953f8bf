package sets

import (
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/redlock"
)

// A field that Config has in common with redlock.Config reaches every set: quorum copies each by its name.
func TestEveryFieldReachesTheSets(t *testing.T) {
	var cfg Config
	values := reflect.ValueOf(&cfg).Elem()
	var common []string
	for field := range values.Type().Fields() {
		of, has := reflect.TypeFor[redlock.Config]().FieldByName(field.Name)
		if !has || field.Name == "Random" { // of a set, by its number; newRouter fills it in
			continue
		}
		if of.Type != field.Type {
			t.Errorf("%s is a %s in one and a %s in the other", field.Name, field.Type, of.Type)
			continue
		}
		common = append(common, field.Name)
		switch value := values.FieldByName(field.Name); value.Interface().(type) {
		case time.Duration:
			value.SetInt(int64(time.Hour + time.Duration(len(common))))
		case *slog.Logger:
			value.Set(reflect.ValueOf(slog.New(slog.DiscardHandler)))
		default:
			switch value.Kind() { //nolint:exhaustive // the others fail below
			case reflect.Bool:
				value.SetBool(true)
			case reflect.Int:
				value.SetInt(int64(len(common)))
			case reflect.String:
				value.SetString(field.Name)
			case reflect.Func:
				value.Set(reflect.MakeFunc(value.Type(), nil))
			}
		}
	}
	got := reflect.ValueOf(cfg.quorum())
	for _, name := range common {
		want, has := values.FieldByName(name), got.FieldByName(name)
		same := has.Kind() == reflect.Func && has.Pointer() == want.Pointer() && !has.IsNil() || has.Comparable() && has.Equal(want) && !has.IsZero()
		if !same {
			t.Errorf("%s is %v, and %v in a set", name, want, has)
		}
	}
	if len(common) < 15 {
		t.Errorf("only %v are in both", common)
	}
}
