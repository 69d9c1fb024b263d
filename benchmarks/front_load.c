// The two ends of a measurement of gcr serve's front: a server that answers at once, and clients that ask again at once.
//
//   front_load serve PORT                         answers every request with the same 200, keep-alive
//   front_load ask PORT CONNECTIONS SECONDS PATH  one request at a time a connection; prints one JSON object
//
// Both are one thread with epoll, so that neither is what limits. A request or an answer is a head and Content-Length.
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { kBuffer = 1 << 14, kMostConnections = 4096, kMostSamples = 1 << 22 };

struct connection {
  int fd;
  size_t filled;
  double sent;
  char buffer[kBuffer];
};

static const char kSaid[] =
    "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\"hello there\"}]}";
static const char kBody[] =
    "{\"model\": \"a\", \"messages\": [{\"role\": \"user\", \"content\": \"Say hello, in two words, please.\"}]}";

static struct connection* connections[kMostConnections];
static float* samples;
static size_t taken, failed;
static char request[1024], answer[1024];

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static void die(const char* what) {
  perror(what);
  exit(1);
}

// Returns the length of the message that the buffer begins with, or 0 where it is not whole.
static size_t whole(struct connection* c) {
  c->buffer[c->filled] = 0;
  char* end = strstr(c->buffer, "\r\n\r\n");
  if (!end) return 0;
  char* field = strcasestr(c->buffer, "\r\ncontent-length:");
  size_t total = (size_t)(end + 4 - c->buffer) + (field && field < end ? strtoul(field + 17, NULL, 10) : 0);
  return c->filled >= total ? total : 0;
}

static void send_all(int fd, const char* bytes, size_t count) {
  if (send(fd, bytes, count, MSG_NOSIGNAL) != (ssize_t)count) die("send");
}

static struct connection* watch(int poll, int fd) {
  struct connection* c = calloc(1, sizeof *c);
  int yes = 1;
  c->fd = fd;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
  return c;
}

// Returns whether the connection goes on.
static int filled(struct connection* c) {
  ssize_t got = recv(c->fd, c->buffer + c->filled, kBuffer - 1 - c->filled, 0);
  if (got <= 0) {
    close(c->fd);
    return 0;
  }
  c->filled += (size_t)got;
  return 1;
}

static void drop(struct connection* c, size_t count) {
  memmove(c->buffer, c->buffer + count, c->filled - count);
  c->filled -= count;
}

static void serve(int port) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  snprintf(answer, sizeof answer, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
           sizeof kSaid - 1, kSaid);
  int yes = 1, listening = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0);
  setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(listening, (struct sockaddr*)&at, sizeof at) || listen(listening, 1024)) die("listen");
  struct epoll_event first = {.events = EPOLLIN, .data.ptr = NULL};
  epoll_ctl(poll, EPOLL_CTL_ADD, listening, &first);
  for (;;) {
    struct epoll_event events[64];
    int count = epoll_wait(poll, events, 64, -1);
    for (int i = 0; i < count; i++) {
      struct connection* c = events[i].data.ptr;
      if (!c) {
        watch(poll, accept(listening, NULL, NULL));
        continue;
      }
      if (!filled(c)) {
        free(c);
        continue;
      }
      for (size_t size; (size = whole(c)); drop(c, size)) send_all(c->fd, answer, strlen(answer));
    }
  }
}

static void again(struct connection* c) {
  c->sent = now();
  send_all(c->fd, request, strlen(request));
}

static int by_size(const void* a, const void* b) {
  float x = *(const float*)a, y = *(const float*)b;
  return (x > y) - (x < y);
}

static void ask(int port, int count, double seconds, const char* path) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int poll = epoll_create1(0);
  snprintf(request, sizeof request,
           "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: application/json\r\nAccept-Encoding: gzip, deflate\r\n"
           "Authorization: Bearer EMPTY\r\nContent-Type: application/json\r\nUser-Agent: front_load\r\n"
           "Content-Length: %zu\r\n\r\n%s",
           path, port, sizeof kBody - 1, kBody);
  samples = malloc(kMostSamples * sizeof *samples);
  for (int i = 0; i < count; i++) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr*)&at, sizeof at)) die("connect");
    connections[i] = watch(poll, fd);
  }
  double began = now(), end = began + seconds;
  for (int i = 0; i < count; i++) again(connections[i]);
  while (now() < end) {
    struct epoll_event events[64];
    int found = epoll_wait(poll, events, 64, 100);
    for (int i = 0; i < found; i++) {
      struct connection* c = events[i].data.ptr;
      size_t size;
      if (!filled(c)) die("the front closed a connection");
      if (!(size = whole(c))) continue;
      if (strncmp(c->buffer, "HTTP/1.1 200", 12)) failed++;
      if (taken < kMostSamples) samples[taken++] = (float)(now() - c->sent);
      drop(c, size);
      again(c);
    }
  }
  double took = now() - began;
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  qsort(samples, taken, sizeof *samples, by_size);
  printf("{\"answers\": %zu, \"failed\": %zu, \"seconds\": %.3f, \"p50_s\": %.6f, \"p99_s\": %.6f, \"cpu_s\": %.3f}\n", taken,
         failed, took, taken ? samples[taken / 2] : 0.0, taken ? samples[taken * 99 / 100] : 0.0,
         used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6);
}

int main(int argc, char** argv) {
  if (argc == 3 && !strcmp(argv[1], "serve")) serve(atoi(argv[2]));
  if (argc != 6 || strcmp(argv[1], "ask") || atoi(argv[3]) > kMostConnections) {
    fprintf(stderr, "front_load serve PORT | front_load ask PORT CONNECTIONS SECONDS PATH\n");
    return 2;
  }
  ask(atoi(argv[2]), atoi(argv[3]), atof(argv[4]), argv[5]);
  return 0;
}
