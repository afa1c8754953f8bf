package rawhttp

import "strconv"

// Host is the Host header of every request.
const Host = "bench"

// AppendRequest appends a request without a body: method, path, and further header lines, each
// with its line break.
func AppendRequest(buf []byte, method, path, headers string) []byte {
	buf = appendHead(buf, method, path, headers)
	return append(buf, "\r\n"...)
}

// AppendJSON appends a request with a JSON body.
func AppendJSON(buf []byte, method, path, headers string, body []byte) []byte {
	buf = appendHead(buf, method, path, headers)
	buf = append(buf, "Content-Type: application/json\r\nContent-Length: "...)
	buf = strconv.AppendInt(buf, int64(len(body)), 10)
	buf = append(buf, "\r\n\r\n"...)
	return append(buf, body...)
}

func appendHead(buf []byte, method, path, headers string) []byte {
	buf = append(buf, method...)
	buf = append(buf, ' ')
	buf = append(buf, path...)
	buf = append(buf, " HTTP/1.1\r\nHost: "+Host+"\r\n"...)
	return append(buf, headers...)
}
