package api

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// acquireBody is wire.AcquireRequest as the server reads it: a pointer is nil for a
// member that is absent.
type acquireBody struct {
	Resource  *string        `json:"resource"`
	Resources []string       `json:"resources"`
	Slots     *int           `json:"slots"`
	TTLMS     *int64         `json:"ttl_ms"`
	WaitMS    *int64         `json:"wait_ms"`
	MinHoldMS *int64         `json:"min_hold_ms"`
	MaxHoldMS *int64         `json:"max_hold_ms"`
	Holder    string         `json:"holder"`
	Metadata  jsontext.Value `json:"metadata"`
}

// acquisition is an acquire request.
type acquisition struct {
	lockcore.AcquireRequest
	namesWait bool // wait_ms was given: Prefer is not a substitute for it
}

// longestHold bounds max_hold_ms: ten years are as good as none.
const longestHold = 10 * 365 * 24 * time.Hour

// decodeAcquire reads and checks the body of POST /locks. The error is a *lockcore.FieldError.
func decodeAcquire(data []byte, maxTTL time.Duration) (req acquisition, err error) {
	var body acquireBody
	if err := decodeJSON(data, &body); err != nil {
		return req, err
	}
	if req.Resource, req.Resources, err = resources(body); err != nil {
		return req, err
	}
	if req.Slots, err = slots(body); err != nil {
		return req, err
	}
	if req.TTL, err = millis("ttl_ms", body.TTLMS, lockcore.MinTTL, maxTTL); err != nil {
		return req, err
	}
	if req.Wait, err = millis("wait_ms", body.WaitMS, 0, lockcore.MaxWait); err != nil {
		return req, err
	}
	if req.MinHold, err = millis("min_hold_ms", body.MinHoldMS, 0, maxTTL); err != nil {
		return req, err
	}
	if req.MaxHold, err = millis("max_hold_ms", body.MaxHoldMS, 0, longestHold); err != nil {
		return req, err
	}
	if err := lockcore.ValidateText("holder", body.Holder, 0); err != nil {
		return req, err
	}
	req.namesWait = body.WaitMS != nil
	req.Holder = body.Holder
	req.Metadata, err = metadata(body.Metadata)
	return req, err
}

// decodeExtend reads and checks the body of an extend; an empty one asks for
// the default (0). The error is a *lockcore.FieldError.
func decodeExtend(data []byte, maxTTL time.Duration) (time.Duration, error) {
	if len(data) == 0 {
		return 0, nil
	}
	var body wire.ExtendRequest
	if err := decodeJSON(data, &body); err != nil {
		return 0, err
	}
	return millis("ttl_ms", body.TTLMS, lockcore.MinTTL, maxTTL)
}

// breakBody is wire.BreakRequest as the server reads it.
type breakBody struct {
	Resource     *string `json:"resource"`
	FencingToken *int64  `json:"fencing_token"`
	Any          *bool   `json:"any"`
}

// decodeBreak reads and checks the body of a break: its resource, and the token of the lease
// to break, 0 for any. The error is a *lockcore.FieldError.
func decodeBreak(data []byte) (resource string, token fencing.Token, err error) {
	var body breakBody
	if err := decodeJSON(data, &body); err != nil {
		return "", 0, err
	}
	if body.Resource == nil {
		return "", 0, badField("resource", "is required")
	}
	if err := lockcore.ValidateResource(*body.Resource); err != nil {
		return "", 0, err
	}
	switch {
	case body.FencingToken == nil && body.Any == nil:
		return "", 0, badField("fencing_token", "is required: the token of the lease to break (GET /locks/{resource} shows it), or any")
	case body.FencingToken != nil && body.Any != nil:
		return "", 0, badField("any", "must not be given together with fencing_token")
	case body.Any != nil && !*body.Any:
		return "", 0, badField("any", "must be true, or absent beside a fencing_token")
	case body.Any != nil:
		return *body.Resource, 0, nil
	}
	token = fencing.Token(*body.FencingToken)
	if !token.Valid() {
		return "", 0, badField("fencing_token", fmt.Sprintf("must be a whole number from 1 to %d", fencing.MaxToken))
	}
	return *body.Resource, token, nil
}

// decodeValue checks a body that may be any JSON value, and copies it without
// the space around it. The error is a *lockcore.FieldError.
func decodeValue(data []byte) ([]byte, error) {
	var value jsontext.Value
	err := decodeJSON(data, &value)
	return value, err
}

// resources gives the one resource, or the several, that a request names.
func resources(body acquireBody) (string, []string, error) {
	switch {
	case body.Resource == nil && body.Resources == nil:
		return "", nil, badField("resource", "is required, or resources")
	case body.Resource == nil:
		return "", body.Resources, checkResources(body.Resources)
	case body.Resources != nil:
		return "", nil, badField("resources", "must not be given together with resource")
	default:
		return *body.Resource, nil, lockcore.ValidateResource(*body.Resource)
	}
}

// slots gives the number of slots that a request names, 0 if it names none.
func slots(body acquireBody) (int, error) {
	switch {
	case body.Slots == nil:
		return 0, nil
	case body.Resources != nil:
		return 0, badField("slots", "must not be given together with resources")
	case *body.Slots == 0: // for no slots, once it is decoded
		return 0, lockcore.ValidateSlots(*body.Resource, -1)
	}
	return *body.Slots, lockcore.ValidateSlots(*body.Resource, *body.Slots)
}

func checkResources(list []string) error {
	const field = "resources"
	if len(list) < lockcore.MinBundle || len(list) > lockcore.MaxBundle {
		return badField(field, fmt.Sprintf("must name %d to %d resources", lockcore.MinBundle, lockcore.MaxBundle))
	}
	for i, resource := range list {
		if err := lockcore.ValidateText(field, resource, 1); err != nil {
			return err
		}
		if slices.Contains(list[:i], resource) {
			return badField(field, "must not name a resource twice")
		}
	}
	return nil
}

// millis is a duration between two bounds, 0 if it is not given.
func millis(field string, ms *int64, shortest, longest time.Duration) (time.Duration, error) {
	if ms == nil {
		return 0, nil
	}
	if *ms < shortest.Milliseconds() || *ms > longest.Milliseconds() {
		return 0, badField(field, fmt.Sprintf("must be a whole number from %d to %d", shortest.Milliseconds(), longest.Milliseconds()))
	}
	return time.Duration(*ms) * time.Millisecond, nil
}

func metadata(value jsontext.Value) ([]byte, error) {
	switch {
	case len(value) > lockcore.MaxMetadataBytes:
		return nil, badField("metadata", fmt.Sprintf("must be at most %d bytes long", lockcore.MaxMetadataBytes))
	case value.Kind() == 'n':
		return nil, nil
	}
	return value, nil
}

// strict refuses unknown members. Package json refuses by itself a name that occurs
// twice or in other case, invalid UTF-8, and anything after the value.
var strict = json.RejectUnknownMembers(true)

// strictNulls also refuses null, since a member without a value is left out.
// Only what may be any JSON value may be null.
var strictNulls = json.JoinOptions(strict, json.WithUnmarshalers(json.UnmarshalFromFunc(
	func(dec *jsontext.Decoder, into any) error {
		if _, anything := into.(*jsontext.Value); anything || dec.PeekKind() != 'n' {
			return errors.ErrUnsupported // decode as usual
		}
		return &json.SemanticError{GoType: reflect.TypeOf(into)}
	})))

// decodeJSON reads data, which it does not keep, strictly into a struct. The
// error is a *lockcore.FieldError.
func decodeJSON(data []byte, into any) error {
	if offset, deep := tooDeep(data); deep {
		return badField(fieldBody, fmt.Sprintf("is not valid JSON: nested deeper than %d levels at byte %d", MaxBodyDepth, offset))
	}
	options := strict
	if bytes.Contains(data, []byte("null")) { // seldom, and looking at each value costs twice the time
		options = strictNulls
	}
	if err := json.Unmarshal(data, into, options); err != nil {
		return explain(err)
	}
	return nil
}

// tooDeep says whether arrays and objects nest deeper than MaxBodyDepth, and
// at which byte. Package json has a limit of its own, ten thousand.
func tooDeep(data []byte) (offset int64, deep bool) {
	if bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) <= MaxBodyDepth {
		return 0, false // nearly always
	}
	dec := jsontext.NewDecoder(bytes.NewReader(data))
	for {
		if _, err := dec.ReadToken(); err != nil {
			return 0, false // the end, or what is explained better when it is decoded
		}
		if dec.StackDepth() > MaxBodyDepth {
			return dec.InputOffset() - 1, true
		}
	}
}

// explain says which field an error of package json is about, what is wrong and where.
func explain(err error) *lockcore.FieldError {
	var syntax *jsontext.SyntacticError
	var semantic *json.SemanticError
	switch {
	case errors.As(err, &syntax):
		return badField(fieldBody, fmt.Sprintf("is not valid JSON: %s at byte %d", syntaxReason(syntax), syntax.ByteOffset))
	case !errors.As(err, &semantic):
		return badField(fieldBody, "is not valid JSON: "+err.Error())
	case errors.Is(err, json.ErrUnknownName):
		return unknownField(semantic.JSONPointer.LastToken())
	}
	at := slices.Collect(semantic.JSONPointer.Tokens())
	switch len(at) {
	case 0:
		return badField(fieldBody, "must be "+wanted(semantic.GoType))
	case 1:
		return badField(at[0], "must be "+wanted(semantic.GoType))
	default:
		return badField(at[0], fmt.Sprintf("must contain %s at index %s", wanted(semantic.GoType), at[1]))
	}
}

func syntaxReason(err *jsontext.SyntacticError) string {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return fmt.Sprintf("name %q occurs twice", clip(err.JSONPointer.LastToken()))
	}
	return err.Err.Error()
}

// wanted says in JSON's words what decodes into a type.
func wanted(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Int64:
		return "a whole number, without fraction and exponent, of at most 64 bits"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Struct {
			return "an array of objects"
		}
		return "an array of strings"
	default:
		return "a JSON object"
	}
}

func unknownField(name string) *lockcore.FieldError {
	if name == "" {
		return badField(fieldBody, "contains a field without a name")
	}
	return badField(clip(name), "is not a field of this request")
}

// clip shortens a name that a caller chose, so that an answer stays short.
func clip(name string) string {
	const maxBytes = 64
	return strings.ToValidUTF8(name[:min(len(name), maxBytes)], "…")
}
