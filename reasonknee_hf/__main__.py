from reasonknee_hf.cli import main

raise SystemExit(main())
