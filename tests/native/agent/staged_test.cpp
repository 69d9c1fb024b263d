// SPDX-License-Identifier: Apache-2.0
//
// Staged: descriptors in order, all or not at all, and never a stranger's.
#include "core/staged.h"

#include <fcntl.h>
#include <unistd.h>

#include "check.h"

namespace {

int make_file() {
    int ends[2];
    CHECK(pipe(ends) == 0);
    close(ends[1]);
    return ends[0];
}

bool is_open(int fd) {
    return fcntl(fd, F_GETFD) >= 0;
}

}  // namespace

int main() {
    gcr::Staged staged;
    int files[4] = {make_file(), make_file(), make_file(), make_file()};
    CHECK(staged.add(7, 0, 3, files, 2) && !staged.complete());
    int stray = make_file();
    CHECK(!staged.add(7, 3, 3, &stray, 1) && !is_open(stray));  // not the next one: closed, the rest stays
    int more = make_file();
    CHECK(!staged.add(7, 0, 0xffffffff, &more, 1) && !is_open(more));  // a set of so many there cannot be
    CHECK(staged.add(7, 2, 3, &files[2], 1) && staged.complete());
    int copies[4];
    CHECK(staged.copy(1, 4, copies) == 2 && copies[0] == files[1] && copies[1] == files[2]);

    close(files[0]);                             // the program closed it …
    CHECK(dup2(files[3], files[0]) == files[0]);  // … and has something else under that number
    CHECK(staged.copy(0, 4, copies) == 0);
    staged.drop();
    CHECK(is_open(files[0]) && !is_open(files[1]) && !is_open(files[2]));
    CHECK(!staged.complete() && staged.transaction() == 0);

    int again = make_file(), other = make_file();
    CHECK(staged.add(8, 0, 1, &again, 1));
    CHECK(staged.add(9, 0, 1, &other, 1) && !is_open(again) &&
          staged.transaction() == 9);  // a new set replaces the old
    staged.drop();
    close(files[0]);
    close(files[3]);
}
