package server

import "testing"

func TestConnectionsLeaveFilesForTheRest(t *testing.T) {
	for _, test := range []struct {
		files         uint64
		public, admin int
	}{
		{0, 0, 0}, // not known
		{64, 32, 8},
		{256, 192, 16},
		{1024, 768, 64},
		{65536, 64512, 256},
		{1<<63 - 1, 1<<30 - 1024, 256}, // unlimited
	} {
		public, admin := connectionLimits(test.files)
		if public != test.public || admin != test.admin {
			t.Errorf("of %d files %d are for the API and %d for the admin listener, want %d and %d", test.files, public, admin, test.public, test.admin)
		}
	}
	if filesNote(65536, 10_000) != nil || filesNote(0, 10_000) != nil || len(filesNote(1024, 10_000)) != 1 {
		t.Error("the note is not there exactly where waiters need more connections than there may be")
	}
}
