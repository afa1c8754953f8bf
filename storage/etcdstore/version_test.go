package etcdstore

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// oldEtcd responds as a member of an old version does to the few calls that are made to it. It refuses every other
// call.
type oldEtcd struct {
	pb.UnimplementedKVServer
	pb.UnimplementedMaintenanceServer

	version string
}

func (*oldEtcd) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: &pb.ResponseHeader{MemberId: 1, Revision: 1}}, nil
}

func (o *oldEtcd) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Header: &pb.ResponseHeader{MemberId: 1, Revision: 1}, Version: o.version}, nil
}

// An etcd that is too old is refused. The error names the member and the reason, and says what to do. Nothing is
// written.
func TestAnEtcdThatIsTooOld(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"3.3.27", "2.3.8", "unknown"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			var asked []string
			server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				mu.Lock()
				asked = append(asked, info.FullMethod)
				mu.Unlock()
				return next(ctx, req)
			}))
			old := &oldEtcd{version: version}
			pb.RegisterKVServer(server, old)
			pb.RegisterMaintenanceServer(server, old)
			var done sync.WaitGroup
			done.Go(func() { _ = server.Serve(listener) })
			defer done.Wait()
			defer server.Stop()

			url := "etcd://" + listener.Addr().String() + "/locks"
			opened, err := Open(t.Context(), url, patient())
			if err == nil {
				_ = opened.Close()
				t.Fatal("it is taken")
			}
			_, looked := Look(t.Context(), url, 10*time.Second)
			for _, got := range []error{err, looked} {
				for _, part := range []string{listener.Addr().String(), "version " + version, "3.4.0 or later", "a restore", "Upgrade etcd"} {
					if got == nil || !strings.Contains(got.Error(), part) {
						t.Errorf("%q is not in: %v", part, got)
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for _, method := range asked {
				if method != pb.KV_Range_FullMethodName && method != pb.Maintenance_Status_FullMethodName {
					t.Errorf("it was asked for %s", method)
				}
			}
		})
	}
	for _, version := range []string{"3.4.0", "3.4.23", "3.5.16", "3.6.0-rc.1", "4.0.0"} {
		if err := newEnough(version, "a:2379"); err != nil {
			t.Errorf("%s: %v", version, err)
		}
	}
}
